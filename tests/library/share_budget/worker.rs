//! What the other processes of the tests do. A task writes a line when it has begun, and ends with its standard input.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trtalloc::allocator::{Allocator, RESIZABLE, Request};
use trtalloc::driver::{Driver, Stream};
use trtalloc::trace::application::Application;
use trtalloc::trace::random::Random;

/// The variable that names a task.
pub const TASK: &str = "TRTALLOC_TEST_TASK";

pub const MIB: u64 = 1 << 20;

/// This program with a task. The arguments of `work` come behind the options: its number, the seed, and the file of the processes'
/// progress.
pub fn command(task: &str, options: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(TASK, task).arg(options);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

pub fn request(size: u64, flags: u32, stream: Option<Stream>) -> Request {
    Request {
        size,
        alignment: 0,
        flags,
        stream,
        device: Some(0),
    }
}

/// An argument of this process.
fn argument(at: usize) -> String {
    std::env::args().nth(at).unwrap()
}

pub fn run(task: &str) -> ExitCode {
    let options = argument(1);
    let allocator = Allocator::create(&options).unwrap();
    match task {
        "work" => work(&allocator),
        _ => hold(&allocator, task),
    }
    ExitCode::SUCCESS
}

/// Waits until the parent closes the pipe.
fn wait_for_the_end() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Holds 32 MiB, and does what the task says.
fn hold(allocator: &Allocator, task: &str) {
    let block = allocator.allocate(request(32 * MIB, 0, None)).unwrap();
    match task {
        "hold" => println!("holds"),
        "fork" => {
            // SAFETY: the child makes no call of the library but the free below, which is refused.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let _ = allocator.deallocate(block, None);
                // It outlives its parent, and ends by itself where the test has failed.
                // SAFETY: waits for a signal.
                unsafe {
                    libc::alarm(60);
                    libc::pause();
                }
            }
            println!("{child}");
        }
        "exec" => {
            use std::os::unix::process::CommandExt;
            println!("holds");
            let mut pause = String::new();
            std::io::stdin().read_line(&mut pause).unwrap();
            let error = Command::new("sleep").arg("1000").exec();
            panic!("{error}");
        }
        "close" => {
            // The simulated device's own descriptors are lower.
            // SAFETY: a program may close what it did not open; the library has to notice.
            unsafe { libc::close_range(512, u32::MAX, 0) };
            let more = allocator.allocate(request(4 * MIB, 0, None)).unwrap();
            println!("holds");
            wait_for_the_end();
            allocator.deallocate(more, None).unwrap();
        }
        _ => panic!("no task: {task}"),
    }
    wait_for_the_end();
    allocator.deallocate(block, None).unwrap();
    allocator.close();
}

struct Block {
    address: u64,
    size: u64,
    stream: Option<Stream>,
    resizable: bool,
}

/// Allocates, uses, resizes and frees at random.
fn work(allocator: &Arc<Allocator>) {
    let number = |at| argument(at).parse::<u64>().unwrap();
    let slot = number(2) * 8;
    let mut random = Random::new(number(3));
    let progress = File::options().write(true).open(argument(4)).unwrap();
    let ends = Arc::new(AtomicBool::new(false));
    let seen = ends.clone();
    std::thread::spawn(move || {
        wait_for_the_end();
        seen.store(true, Ordering::Relaxed);
    });
    let driver: Arc<dyn Driver> = allocator.driver().clone();
    let application = Application::new(driver, 0).unwrap();
    let streams = [
        application.create_stream().unwrap(),
        application.create_stream().unwrap(),
    ];
    println!("works");
    let mut blocks: Vec<Block> = Vec::new();
    let mut steps = 0u64;
    let free = |blocks: &mut Vec<Block>, at: usize| {
        let block = blocks.swap_remove(at);
        allocator.deallocate(block.address, block.stream).unwrap();
    };
    while !ends.load(Ordering::Relaxed) {
        steps += 1;
        progress.write_all_at(&steps.to_ne_bytes(), slot).unwrap();
        match random.below(20) {
            0..=9 if blocks.len() < 24 => {
                let size = (1 + random.below(16)) * MIB * if random.below(8) == 0 { 4 } else { 1 };
                let stream = [None, Some(streams[0]), Some(streams[1])][random.below(3) as usize];
                let resizable = random.below(4) == 0;
                let flags = if resizable { RESIZABLE } else { 0 };
                match allocator.allocate(request(size, flags, stream)) {
                    Ok(address) => {
                        if let Some(stream) = stream {
                            application.launch(stream, address, size).unwrap();
                        }
                        blocks.push(Block {
                            address,
                            size,
                            stream,
                            resizable,
                        });
                    }
                    // A process that is refused gives up a part of what it holds.
                    Err(_) if !blocks.is_empty() => free(&mut blocks, 0),
                    Err(_) => {}
                }
            }
            10..=16 if !blocks.is_empty() => {
                let at = random.below(blocks.len() as u64) as usize;
                free(&mut blocks, at);
            }
            17 => {
                if let Some(block) = blocks.iter_mut().find(|block| block.resizable) {
                    let size = (1 + random.below(24)) * MIB;
                    if let Ok(address) = allocator.reallocate(block.address, 0, size) {
                        (block.address, block.size) = (address, size);
                    }
                }
            }
            18 => application.synchronize().unwrap(),
            // A server that has nothing to do.
            19 if random.below(4) == 0 => std::thread::sleep(std::time::Duration::from_millis(random.below(120))),
            _ => {}
        }
        assert!(blocks.iter().all(|block| block.size > 0));
    }
    while !blocks.is_empty() {
        free(&mut blocks, 0);
    }
    application.synchronize().unwrap();
    allocator.close();
    assert_eq!(allocator.stats(Some(0)).unwrap().reserved, 0);
}
