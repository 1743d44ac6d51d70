//! A small HTTP server: it answers `GET /metrics`, and closes each connection after its answer.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::exposition::Format;

/// The maximum size of a request's head, in bytes.
const MAX_HEAD: usize = 8 << 10;
const MAX_HEADERS: usize = 64;
/// How long the whole head may take to arrive.
const HEAD_TIME: Duration = Duration::from_secs(2);
/// How long a client may take for the answer.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// How long this waits for the end of what a client still sends, so that the client can read the answer.
const LINGER: Duration = Duration::from_millis(500);
/// How many clients are served at a time. More are turned away at once.
const MAX_CLIENTS: usize = 32;

const HINT: &str = "trtalloc run: the metrics are at /metrics\n";

/// Serves for ever.
pub fn serve(listener: &TcpListener, metrics: Arc<impl Fn(Format) -> String + Send + Sync + 'static>) {
    static CLIENTS: AtomicUsize = AtomicUsize::new(0);
    struct Client;
    impl Drop for Client {
        fn drop(&mut self) {
            CLIENTS.fetch_sub(1, Ordering::Relaxed);
        }
    }
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // No descriptor is left, for example.
            Err(_) => {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        let others = CLIENTS.fetch_add(1, Ordering::Relaxed);
        let client = Client;
        if others >= MAX_CLIENTS {
            continue;
        }
        let metrics = metrics.clone();
        let thread = std::thread::Builder::new().stack_size(256 << 10);
        // Where no thread can be started, the connection is closed.
        let _ = thread.spawn(move || {
            let _client = client;
            // A client that goes away, or is too slow, gets nothing more.
            let _ = answer(stream, &*metrics);
        });
    }
}

fn answer(mut stream: TcpStream, metrics: &dyn Fn(Format) -> String) -> std::io::Result<()> {
    let request = read_head(&mut stream)?;
    let (status, kind, body) = match &request {
        Err(status) => (*status, "text/plain; charset=utf-8", format!("{status}\n")),
        Ok(request) => match (request.is_read, request.path.as_str()) {
            (true, "/metrics") => ("200 OK", request.format.content_type(), metrics(request.format)),
            (true, "/") => ("200 OK", "text/plain; charset=utf-8", HINT.into()),
            (false, "/" | "/metrics") => (
                "405 Method Not Allowed",
                "text/plain; charset=utf-8",
                "405 Method Not Allowed\n".into(),
            ),
            _ => ("404 Not Found", "text/plain; charset=utf-8", HINT.into()),
        },
    };
    let allow = if status.starts_with("405") {
        "Allow: GET, HEAD\r\n"
    } else {
        ""
    };
    let mut text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Vary: Accept\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if !request.is_ok_and(|request| request.is_head) {
        text.push_str(&body);
    }
    write(&mut stream, text.as_bytes(), Instant::now() + ANSWER_TIME)?;
    stream.shutdown(Shutdown::Write)?;
    // A connection that is closed with bytes unread is reset, and the client loses the answer.
    let until = Instant::now() + LINGER;
    let mut rest = [0; 4096];
    while read(&mut stream, &mut rest, until)? > 0 {}
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
struct Request {
    path: String,
    /// GET or HEAD.
    is_read: bool,
    is_head: bool,
    format: Format,
}

/// The request, or the status that refuses it.
fn read_head(stream: &mut TcpStream) -> std::io::Result<Result<Request, &'static str>> {
    let until = Instant::now() + HEAD_TIME;
    let (mut head, mut length) = ([0; MAX_HEAD], 0);
    loop {
        let more = read(stream, &mut head[length..], until)?;
        length += more;
        match parse(&head[..length]) {
            Ok(Some(request)) => return Ok(Ok(request)),
            Err(status) => return Ok(Err(status)),
            Ok(None) if length == MAX_HEAD => return Ok(Err("431 Request Header Fields Too Large")),
            Ok(None) if more == 0 => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(None) => {}
        }
    }
}

/// None where the head is not complete.
fn parse(head: &[u8]) -> Result<Option<Request>, &'static str> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err("431 Request Header Fields Too Large"),
        Err(_) => return Err("400 Bad Request"),
    }
    let (method, target) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let accept = request
        .headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case("accept"));
    let accept: Vec<&str> = accept
        .filter_map(|header| std::str::from_utf8(header.value).ok())
        .collect();
    Ok(Some(Request {
        path: path.into(),
        is_read: ["GET", "HEAD"].contains(&method),
        is_head: method == "HEAD",
        format: preferred(&accept.join(",")),
    }))
}

/// Prometheus's text where the client prefers it, otherwise OpenMetrics.
fn preferred(accept: &str) -> Format {
    // For each format: how exactly an item names it, and the item's quality.
    let (mut open, mut plain) = ((0, 0.0), (0, 0.0));
    for item in accept.split(',') {
        let mut parts = item.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts
            .find_map(|part| part.strip_prefix("q="))
            .and_then(|text| text.parse().ok());
        let quality: f32 = quality.unwrap_or(1.0);
        for (found, exact, range) in [
            (&mut open, "application/openmetrics-text", "application/*"),
            (&mut plain, "text/plain", "text/*"),
        ] {
            let rank = [(exact, 3), (range, 2), ("*/*", 1)]
                .into_iter()
                .find(|(known, _)| *known == name);
            if let Some((_, rank)) = rank
                && (rank, quality) > *found
            {
                *found = (rank, quality);
            }
        }
    }
    match plain.1 > open.1 {
        true => Format::Prometheus,
        false => Format::OpenMetrics,
    }
}

/// Reads what is there, and waits for something until then.
fn read(stream: &mut TcpStream, into: &mut [u8], until: Instant) -> std::io::Result<usize> {
    stream.set_read_timeout(Some(left(until)?))?;
    stream.read(into)
}

fn write(stream: &mut TcpStream, mut bytes: &[u8], until: Instant) -> std::io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(bytes)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            count => bytes = &bytes[count..],
        }
    }
    Ok(())
}

fn left(until: Instant) -> std::io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_is_what_the_client_prefers() {
        use Format::{OpenMetrics, Prometheus};
        for (accept, format) in [
            ("", OpenMetrics),
            ("*/*", OpenMetrics),
            // Prometheus 2 and 3.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.4,\
                 text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                OpenMetrics,
            ),
            ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", Prometheus),
            ("text/plain", Prometheus),
            ("Text/*", Prometheus),
            ("text/plain, application/openmetrics-text;q=0.2", Prometheus),
            ("text/plain;q=0.2, application/openmetrics-text; q=0.3", OpenMetrics),
            ("image/png", OpenMetrics),
            ("text/plain;q=x", Prometheus),
        ] {
            assert_eq!(preferred(accept), format, "{accept}");
        }
    }

    #[test]
    fn prefix_of_a_request_is_no_request() {
        let head = b"GET /metrics?a=b HTTP/1.1\r\nHost: x\r\nACCEPT: text/plain\r\n\r\n";
        let request = parse(head).unwrap().unwrap();
        assert_eq!(
            (request.path.as_str(), request.is_read, request.is_head, request.format),
            ("/metrics", true, false, Format::Prometheus)
        );
        for length in 0..head.len() {
            assert_eq!(parse(&head[..length]), Ok(None), "{length}");
        }
        for bad in [
            &b"GET\r\n\r\n"[..],
            b"\0\0\0",
            b"GET / HTTP/3.0\r\n\r\n",
            b"GET / HTTP/1.1\r\n:\r\n\r\n",
        ] {
            assert_eq!(parse(bad), Err("400 Bad Request"), "{bad:?}");
        }
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
        assert!(parse(many.as_bytes()).is_err_and(|status| status.starts_with("431")));
    }
}
