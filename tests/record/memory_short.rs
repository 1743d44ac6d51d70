//! What becomes of a request that cannot be met.

use std::sync::{Arc, Mutex};

use crate::program::{Program, path, request};
use crate::viewer;

#[test]
fn a_handler_makes_room_and_the_first_refusal_is_a_snapshot() {
    let file = path("oom.pickle");
    let _ = std::fs::remove_file(&file);
    let program = Program::new(&format!(
        "history=all,limit=64MiB,wait_ms=0,snapshot_on_oom={}",
        file.display()
    ));
    let held = Arc::new(Mutex::new(vec![program.get(48 << 20, None)]));
    let (allocator, spare) = (Arc::downgrade(&program.allocator), held.clone());
    program.allocator.on_oom(Some(Arc::new(move |device, size| {
        assert_eq!((device, size), (0, 32 << 20));
        let allocator = allocator.upgrade().unwrap();
        // A request of its own that cannot be met does not ask it again.
        assert!(allocator.allocate(request(60 << 20, None)).is_err());
        let address = spare.lock().unwrap().pop();
        address
            .map(|address| allocator.deallocate(address, None).unwrap())
            .is_some()
    })));
    let met = program.get(32 << 20, None);
    held.lock().unwrap().push(met);
    program.allocator.on_oom(None);
    assert!(program.allocator.allocate(request(40 << 20, None)).is_err());
    let Some(seen) = viewer::open(&file) else { return };
    assert!(seen.number("oom") >= 1, "{seen}");
    assert_eq!(seen.number("left_out"), 0, "{seen}");
}
