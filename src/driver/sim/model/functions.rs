//! The driver functions, and the kind of each: for counting, latency and injected failures.

/// What a call costs the calling thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// A query: cheap and lock-free.
    Query,
    /// Submits work, changes state, or may block. An allocator may make it.
    Call,
    /// As `Call`, but only applications make it. It is not counted as an allocator's call, and fails only if a rule
    /// names it.
    Application,
}

/// How long the calls of the simulated driver take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Latencies {
    /// At most a microsecond: `Call::default_latency`.
    #[default]
    Short,
    /// Memory calls take as long as was published for an A100. Other calls are as in `Short`.
    A100,
}

impl Latencies {
    /// The simulated nanoseconds that `call` takes.
    #[doc(hidden)]
    pub fn of(self, call: Call) -> u64 {
        match (self, call) {
            (Latencies::Short, _) => call.default_latency(),
            (Latencies::A100, Call::MemCreate) => 30_000,
            (Latencies::A100, Call::MemMap) => 1_500,
            (Latencies::A100, Call::MemSetAccess) => 36_000,
            (Latencies::A100, Call::MemUnmap) => 26_000,
            (Latencies::A100, Call::MemRelease) => 10_000,
            (Latencies::A100, Call::MemAlloc) => 120_000,
            (Latencies::A100, Call::MemFree) => 150_000,
            (Latencies::A100, _) => call.default_latency(),
        }
    }
}

macro_rules! calls {
    ($($variant:ident $name:literal $kind:ident $latency:literal,)*) => {
        /// One driver function.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Call {
            $(#[doc = $name] $variant,)*
        }

        impl Call {
            /// All of them.
            pub const ALL: &'static [Call] = &[$(Call::$variant,)*];
            /// How many there are.
            pub const COUNT: usize = Call::ALL.len();

            /// The driver's name for it.
            pub fn name(self) -> &'static str {
                match self { $(Call::$variant => $name,)* }
            }

            /// What kind it is.
            pub fn kind(self) -> CallKind {
                match self { $(Call::$variant => CallKind::$kind,)* }
            }

            /// Whether the driver may wait for work before it does what it is called for, or waits for work by itself.
            pub fn may_wait(self) -> bool {
                use Call::*;
                matches!(
                    self,
                    MemUnmap | MemRelease | MemFree | MemFreeHost | CtxSynchronize | EventSynchronize
                )
            }

            /// The simulated nanoseconds that it takes by default.
            pub fn default_latency(self) -> u64 {
                match self { $(Call::$variant => $latency,)* }
            }

            /// The function of that name.
            pub fn by_name(name: &str) -> Option<Call> {
                match name { $($name => Some(Call::$variant),)* _ => None }
            }
        }
    };
}

calls! {
    CtxGetCurrent "cuCtxGetCurrent" Query 0,
    CtxGetDevice "cuCtxGetDevice" Query 0,
    CtxGetId "cuCtxGetId" Query 0,
    StreamGetId "cuStreamGetId" Query 0,
    StreamGetCtx "cuStreamGetCtx" Query 0,
    StreamIsCapturing "cuStreamIsCapturing" Query 0,
    StreamGetCaptureInfo "cuStreamGetCaptureInfo" Query 0,
    DeviceGetCount "cuDeviceGetCount" Call 0,
    DeviceInfo "cuDeviceGetAttribute" Call 0,
    MemGetInfo "cuMemGetInfo" Call 200,
    PrimaryRetain "cuDevicePrimaryCtxRetain" Call 100,
    PrimaryRelease "cuDevicePrimaryCtxRelease" Call 100,
    PrimaryGetState "cuDevicePrimaryCtxGetState" Call 50,
    CtxPush "cuCtxPushCurrent" Call 50,
    CtxPop "cuCtxPopCurrent" Call 50,
    CtxRecordEvent "cuCtxRecordEvent" Call 200,
    CtxSynchronize "cuCtxSynchronize" Call 200,
    StreamWaitEvent "cuStreamWaitEvent" Call 100,
    ThreadExchange "cuThreadExchangeStreamCaptureMode" Call 0,
    EventCreate "cuEventCreate" Call 100,
    EventDestroy "cuEventDestroy" Call 100,
    EventRecord "cuEventRecord" Call 100,
    EventQuery "cuEventQuery" Call 200,
    EventSynchronize "cuEventSynchronize" Call 200,
    MemAddressReserve "cuMemAddressReserve" Call 500,
    MemAddressFree "cuMemAddressFree" Call 500,
    MemCreate "cuMemCreate" Call 1000,
    MemRelease "cuMemRelease" Call 500,
    MemMap "cuMemMap" Call 200,
    MemUnmap "cuMemUnmap" Call 500,
    MemSetAccess "cuMemSetAccess" Call 1000,
    MemAlloc "cuMemAlloc" Call 1000,
    MemFree "cuMemFree" Call 1000,
    MemHostAlloc "cuMemHostAlloc" Call 1000,
    MemFreeHost "cuMemFreeHost" Call 1000,
    MemcpyAsync "cuMemcpyDtoDAsync" Call 200,
    MemsetAsync "cuMemsetD8Async" Call 200,
    RetainUserObject "cuGraphRetainUserObject" Call 100,
    PrimaryReset "cuDevicePrimaryCtxReset" Application 1000,
    CtxCreate "cuCtxCreate" Application 1000,
    CtxDestroy "cuCtxDestroy" Application 1000,
    CtxSetCurrent "cuCtxSetCurrent" Application 50,
    StreamCreate "cuStreamCreate" Application 200,
    StreamDestroy "cuStreamDestroy" Application 200,
    StreamQuery "cuStreamQuery" Application 200,
    StreamSynchronize "cuStreamSynchronize" Application 200,
    LaunchKernel "cuLaunchKernel" Application 200,
    StreamBeginCapture "cuStreamBeginCapture" Application 200,
    StreamEndCapture "cuStreamEndCapture" Application 200,
    GraphInstantiate "cuGraphInstantiate" Application 500,
    GraphLaunch "cuGraphLaunch" Application 300,
    GraphDestroy "cuGraphDestroy" Application 200,
    GraphExecDestroy "cuGraphExecDestroy" Application 200,
}
