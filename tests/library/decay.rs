//! The helper thread: it gives idle memory back while the process does nothing, and exists only while there is some.

use std::time::{Duration, Instant};

use trtalloc::allocator::{Allocator, Request};
use trtalloc::config::Config;
use trtalloc::driver::Driver;
use trtalloc::driver::sim::{SimConfig, SimDriver};
use trtalloc::trace::application::Application;

use crate::common;

const MIB: u64 = 1 << 20;

/// How many threads of the library this process has.
fn helpers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.ok()?.path().join("comm")).ok();
    tasks.filter_map(name).filter(|name| name.trim() == "trtalloc").count()
}

/// Waits at most a minute.
fn wait(what: &str, mut until: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !until() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn request(size: u64) -> Request {
    Request {
        size,
        alignment: 0,
        flags: 0,
        stream: None,
        device: None,
    }
}

/// It counts the threads of its process, which is therefore its own.
#[test]
fn thread_exists_while_memory_may_go_back() {
    const ROLE: &str = "TRTALLOC_TEST_ROLE";
    let test = "decay::thread_exists_while_memory_may_go_back";
    if std::env::var(ROLE).is_err() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, test);
        let output = common::run(&mut command);
        assert!(
            String::from_utf8_lossy(&output.stdout).contains("1 passed"),
            "{output:?}"
        );
        return;
    }
    let driver = SimDriver::new(SimConfig::default());
    let _application = Application::new(driver.clone(), 0).unwrap();
    let with = |options: &str| {
        let config = Config::parse(options).unwrap();
        Allocator::with_driver(driver.clone(), config).unwrap()
    };
    let reserved = |allocator: &Allocator| allocator.stats(Some(0)).unwrap().reserved;
    // Without the option, with everything kept, and before the first request, there is no thread.
    for options in ["decay_ms=0", "decay_ms=1,release_threshold=all"] {
        let allocator = with(options);
        let block = allocator.allocate(request(8 * MIB)).unwrap();
        allocator.deallocate(block, None).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(helpers(), 0, "{options}");
        assert!(reserved(&allocator) >= 8 * MIB, "{options}");
    }
    let allocators = [with("decay_ms=8"), with("decay_ms=12")];
    assert_eq!(helpers(), 0);
    for _ in 0..3 {
        let blocks = allocators
            .each_ref()
            .map(|allocator| allocator.allocate(request(8 * MIB)).unwrap());
        wait("one thread serves all allocators", || helpers() == 1);
        // What is in use stays, and with it the thread.
        std::thread::sleep(Duration::from_millis(40));
        assert_eq!(helpers(), 1);
        for (allocator, block) in allocators.iter().zip(blocks) {
            assert!(reserved(allocator) >= 8 * MIB);
            allocator.deallocate(block, None).unwrap();
        }
        wait("all memory goes back", || {
            allocators.iter().all(|allocator| reserved(allocator) == 0)
        });
        wait("the thread ends", || helpers() == 0);
    }
    // Closing, and dropping, while the thread is at work.
    for _ in 0..50 {
        let allocator = with("decay_ms=1");
        for size in [1, 3, 8] {
            let block = allocator.allocate(request(size * MIB)).unwrap();
            allocator.deallocate(block, None).unwrap();
        }
        std::thread::sleep(Duration::from_micros(700));
        allocator.close();
    }
    drop(allocators);
    wait("the thread ends", || helpers() == 0);
    let (free, total) = driver.memory_info(0).unwrap();
    assert_eq!(free, total, "all memory went back");
}
