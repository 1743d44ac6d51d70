//! A Rust program: threads, a caught and an uncaught panic, a child process.

fn main() {
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    let threads: Vec<_> = (0..8u64)
        .map(|start| std::thread::spawn(move || (start..start + 1000).map(|n| n * n % 7).sum::<u64>()))
        .collect();
    let sums: Vec<u64> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    println!("{sums:?}");
    println!("{:?}", std::panic::catch_unwind(|| vec![1, 2][sums.len()]).is_err());
    let output = std::process::Command::new("sh").args(["-c", "echo child; exit 3"]).output();
    println!("{output:?}");
    println!("{:?}", std::net::TcpStream::connect("127.0.0.1:1").map_err(|error| error.kind()));
    panic!("at the end");
}
