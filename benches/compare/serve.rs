//! The workloads of `trtalloc bench serve` on this project and on RMM's pool, over the simulated device with the latencies of
//! an A100. RMM takes its memory from that device with cuMemAlloc, and records and awaits events of it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use trtalloc::allocator::{Allocator, Request};
use trtalloc::config::Config;
use trtalloc::driver::Stream;
use trtalloc::driver::sim::{Latencies, Machine, SimConfig, SimDriver};
use trtalloc::error::{Error, Result};
use trtalloc::trace::application::Application;
use trtalloc::trace::serve::{self, Client, Figures, Kind, Measured, Memory, Row, Run, Simulated};

use crate::pools::Pool;
use crate::rmm::{Device, Rmm, RmmPool};

/// The device's memory.
const MEMORY: u64 = 80 << 30;

/// What selects this table.
pub const NAME: &str = "serve";

/// The first size of RMM's pool, which doubles what it has as often as it needs more.
const FIRST: u64 = 64 << 20;

/// RMM's runtime calls on the simulated device.
struct Runtime {
    machine: Arc<Machine>,
    /// RMM's events, by its numbers.
    events: RefCell<HashMap<usize, usize>>,
}

impl Runtime {
    /// # Safety
    /// `data` is a [`Device::data`] that leads to a runtime.
    unsafe fn of<'a>(data: *const c_void) -> &'a Runtime {
        // SAFETY: see above.
        unsafe { &*data.cast::<Runtime>() }
    }

    fn event(&self, number: usize) -> usize {
        let make = || self.machine.event_create().expect("an event");
        *self.events.borrow_mut().entry(number).or_insert_with(make)
    }

    fn device(&self) -> Device {
        Device {
            data: std::ptr::from_ref(self).cast(),
            allocate,
            deallocate,
            event_record,
            stream_wait_event,
            event_synchronize,
            stream_synchronize,
        }
    }
}

unsafe extern "C" fn allocate(data: *const c_void, bytes: usize) -> *mut c_void {
    // SAFETY: see `Runtime::of`; here and below.
    let address = unsafe { Runtime::of(data) }.machine.memory_malloc(bytes as u64);
    std::ptr::with_exposed_provenance_mut(address.unwrap_or(0) as usize)
}

unsafe extern "C" fn deallocate(data: *const c_void, block: *mut c_void) {
    // SAFETY: as above.
    let freed = unsafe { Runtime::of(data) }.machine.memory_free(block.addr() as u64);
    freed.expect("the pool frees what it has");
}

unsafe extern "C" fn event_record(data: *const c_void, event: usize, stream: usize) {
    // SAFETY: as above.
    let runtime = unsafe { Runtime::of(data) };
    runtime
        .machine
        .event_record(runtime.event(event), stream)
        .expect("the stream is there");
}

unsafe extern "C" fn stream_wait_event(data: *const c_void, stream: usize, event: usize) {
    // SAFETY: as above.
    let runtime = unsafe { Runtime::of(data) };
    runtime
        .machine
        .stream_wait_event(stream, runtime.event(event))
        .expect("both are there");
}

unsafe extern "C" fn event_synchronize(data: *const c_void, event: usize) {
    // SAFETY: as above.
    let runtime = unsafe { Runtime::of(data) };
    runtime
        .machine
        .event_synchronize(runtime.event(event))
        .expect("it is there");
}

unsafe extern "C" fn stream_synchronize(data: *const c_void, stream: usize) {
    // SAFETY: as above.
    let machine = &unsafe { Runtime::of(data) }.machine;
    machine.stream_synchronize(stream).expect("it is there");
}

impl Memory for RmmPool<'_> {
    fn allocate(&self, request: Request) -> Result<u64> {
        let stream = request.stream.map_or(0, |stream| stream.0);
        match Pool::allocate(self, request.size, stream) {
            0 => Err(Error::OutOfMemory("RMM's pool refused it".into())),
            block => Ok(block as u64),
        }
    }

    fn reallocate(&self, _: u64, _: u64) -> Result<u64> {
        Err(Error::Unsupported("RMM resizes no blocks".into()))
    }

    fn deallocate(&self, address: u64, size: u64, stream: Option<Stream>) -> Result<()> {
        let stream = stream.map_or(0, |stream| stream.0);
        match Pool::deallocate(self, address as usize, size, stream) {
            true => Ok(()),
            false => Err(Error::InvalidArgument("RMM's pool refused a free".into())),
        }
    }

    fn close(&self) {}
}

/// The rows that RMM has functions for.
fn rows() -> Vec<Row> {
    let kinds = [
        Kind::Plain,
        Kind::TwoContexts,
        Kind::Outputs,
        Kind::Weights,
        Kind::ForeignFrees,
        Kind::RareLargest,
    ];
    let mut rows = serve::rows();
    rows.retain(|row| kinds.contains(&row.kind));
    rows
}

/// The figures of one row.
struct Compared {
    ours: Measured,
    /// `None` where RMM is not here.
    theirs: Option<Measured>,
}

/// A run of `clients` on a device of its own.
fn run(
    row: Row,
    clients: &[Client],
    warm: usize,
    memory: &dyn Fn(&Arc<SimDriver>, Served<'_>) -> Result<Figures>,
) -> Result<Figures> {
    let driver = SimDriver::new(SimConfig {
        memory: MEMORY,
        latencies: Latencies::A100,
        ..SimConfig::default()
    });
    let application = Application::new(driver.clone(), 0)?;
    let computer = Simulated::new(&application, driver.machine());
    memory(&driver, &mut |memory, decay| {
        Run::new(&computer, memory, clients, row.ahead, warm)?
            .with_decay(decay)
            .run()
    })
}

/// Runs the requests with an allocator, or with none, whose windows of decay have so many milliseconds together.
type Served<'a> = &'a mut dyn FnMut(Option<&dyn Memory>, u64) -> Result<Figures>;

fn measure(row: Row, (warm, measured): (usize, usize), rmm: Option<&Rmm>) -> Result<Compared> {
    let clients = serve::clients(row.kind, row.sizes, row.streams, warm + measured, 1);
    let needs = clients.iter().map(Client::needs).sum();
    let ideal = run(row, &clients, warm, &|_, serve| serve(None, 0))?.device_time;
    let of = |figures| Measured {
        row,
        figures,
        ideal,
        needs,
    };
    let ours = run(row, &clients, warm, &|driver, serve| {
        let mut config = Config::default();
        let decay = std::mem::take(&mut config.decay_ms);
        let allocator = Allocator::with_driver(driver.clone(), config)?;
        serve(Some(allocator.as_ref()), decay)
    })?;
    let theirs = rmm.map(|rmm| {
        run(row, &clients, warm, &|driver, serve| {
            let runtime = Runtime {
                machine: driver.machine().clone(),
                events: RefCell::default(),
            };
            let device = runtime.device();
            let pool = rmm.pool_on(&device, FIRST);
            let pool = pool.ok_or_else(|| Error::OutOfMemory("RMM makes no pool".into()))?;
            serve(Some(&pool), 0)
        })
    });
    Ok(Compared {
        ours: of(ours),
        theirs: theirs.transpose()?.map(of),
    })
}

fn cell(measured: &Measured) -> String {
    let figures = &measured.figures;
    let refused = match figures.refused {
        0 => String::new(),
        refused => format!(" · {refused} refused"),
    };
    format!(
        "{:.1} · {:.3} · {:.2} · {:.0}{refused}",
        figures.per_thousand(figures.memory_calls),
        measured.allocators_part(),
        measured.memory(),
        figures.per_thousand(figures.waits),
    )
}

/// Prints the table. Without `measured`, each row has few requests, and nothing is printed.
pub fn compare(rmm: Option<&Rmm>, measured: bool) {
    let requests = if measured { (300, 1000) } else { (20, 20) };
    if measured {
        println!(
            "\nA server: memory calls for each 1,000 requests · the allocator's part of the device time · driver memory ÷ needs · waits of one"
        );
        println!("stream for another for each 1,000 requests. The simulated device has the latencies of an A100.\n");
        println!(
            "| workload | streams | requests ahead | trtalloc | {} pool |\n|---|---:|---:|---|---|",
            crate::rmm::NAME
        );
    }
    for row in rows() {
        let compared = measure(row, requests, rmm).unwrap_or_else(|error| panic!("{}: {error}", row.name()));
        let found = &compared.ours.figures.violations;
        assert!(found.is_empty(), "{}: {found:?}", row.name());
        let theirs = compared.theirs.as_ref().map_or_else(|| "not here".to_owned(), cell);
        if measured {
            println!(
                "| {} | {} | {} | {} | {theirs} |",
                row.name(),
                row.streams,
                row.ahead,
                cell(&compared.ours)
            );
        }
    }
}
