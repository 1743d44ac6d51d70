//! A pool for GPU memory from Rust, and the same pool for TensorRT.
//!
//!     cargo run                      on the GPU that is here
//!     cargo run -- driver=sim        on the simulated device

use std::sync::Arc;

use trtalloc::{Allocator, ExportedAllocator, RESIZABLE, Request, Result, Stream};

fn main() -> Result<()> {
    let options = std::env::args().nth(1).unwrap_or_else(|| "limit=1GiB".to_owned());
    let memory = Allocator::create(&options)?;

    // A CUstream as a number; this is the default stream.
    let stream = Some(Stream::DEFAULT);
    let request = Request {
        size: 3 << 20,
        alignment: 0,
        flags: 0,
        stream,
        device: None,
    };
    let first = memory.allocate(request)?;
    // Work that uses the block is queued on the stream here. Then the block is freed without waiting for it.
    memory.deallocate(first, stream)?;
    // The stream runs in order, so its next work can reuse the same memory.
    let second = memory.allocate(request)?;
    println!("reused at once: {}", first == second);
    memory.deallocate(second, stream)?;

    let block = memory.allocate(Request {
        flags: RESIZABLE,
        stream: None,
        ..request
    })?;
    let block = memory.reallocate(block, 0, 64 << 20)?;
    let stats = memory.stats(None)?;
    println!("grown to 64 MiB, {} bytes copied", stats.bytes_copied);
    memory.deallocate(block, None)?;

    // An nvinfer1::IGpuAllocator* for bindings of TensorRT. A handle is never freed, so the pointer stays valid. The
    // version
    // is that of the headers from which the bindings are made.
    let exported = ExportedAllocator::new(Arc::clone(&memory));
    for version in [8_601, 10_701, 110_400] {
        let interface = exported.tensorrt(version)? as *mut std::ffi::c_void;
        println!("for TensorRT version {version}: {}", !interface.is_null());
    }
    memory.close();
    Ok(())
}
