//! `--metrics` and `--metrics-file`: the metrics of all processes of the run, served over HTTP and written to a file.
//!
//! This command does all of the work: the processes only answer through their control sockets, as they answer
//! `trtalloc ctl PID metrics`.

mod collect;
mod exposition;
mod http;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use trtalloc::error::{Error, Result};
use trtalloc::history::snapshot::write_file;
use trtalloc::support::run_statistics::SharedFile;

use self::collect::Collector;
use self::exposition::{Exposition, Format};
use super::say;

/// The time between two versions of the file.
const INTERVAL: Duration = Duration::from_secs(5);

/// So long, clients of the HTTP server get the same figures. However many they are, processes answer at most so often.
const FRESH: Duration = Duration::from_millis(500);

#[derive(clap::Args)]
pub struct MetricsArguments {
    /// Serves OpenMetrics of all processes of the run over HTTP: 9464 or :9464 on this machine only, or HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
    /// Writes the metrics of all processes to a file every 5 seconds and at the end, for node_exporter's textfile collector
    #[arg(long, value_name = "PATH")]
    metrics_file: Option<PathBuf>,
}

impl MetricsArguments {
    /// Whether any are asked for.
    pub fn any(&self) -> bool {
        self.metrics.is_some() || self.metrics_file.is_some()
    }

    /// Takes the address and writes the file's first version, so that what is wrong with them is found before the program
    /// starts.
    pub fn prepare(&self, run_statistics: &Arc<SharedFile>) -> Result<Option<Metrics>> {
        if !self.any() {
            return Ok(None);
        }
        let listener = self.metrics.as_deref().map(listen).transpose()?;
        let collector = Arc::new(Collector::new(run_statistics.clone()));
        let file = match &self.metrics_file {
            Some(path) => Some(MetricsFile::create(path, &collector)?),
            None => None,
        };
        Ok(Some(Metrics {
            listener,
            collector,
            file: file.map(Arc::new),
        }))
    }
}

/// What is served and written while the program runs.
pub struct Metrics {
    listener: Option<TcpListener>,
    collector: Arc<Collector>,
    file: Option<Arc<MetricsFile>>,
}

impl Metrics {
    /// Starts the threads. The caller has blocked the signals that it waits for, and they stay blocked in these.
    pub fn start(&mut self) {
        if let Some(listener) = self.listener.take() {
            let (collector, latest) = (self.collector.clone(), Mutex::new(None::<(Instant, Arc<Exposition>)>));
            let answer = move |format| {
                let mut latest = latest.lock();
                let exposition = match &*latest {
                    Some((at, exposition)) if at.elapsed() < FRESH => exposition.clone(),
                    _ => {
                        let exposition = Arc::new(collector.collect());
                        *latest = Some((Instant::now(), exposition.clone()));
                        exposition
                    }
                };
                drop(latest);
                exposition.text(format)
            };
            begin("metrics", move || http::serve(&listener, Arc::new(answer)));
        }
        if let Some(file) = &self.file {
            let (file, collector) = (file.clone(), self.collector.clone());
            begin("metrics file", move || {
                loop {
                    std::thread::sleep(INTERVAL);
                    file.update(&collector.collect());
                }
            });
        }
    }

    /// Writes the file for the last time: with what is still running.
    pub fn end(&self) {
        if let Some(file) = &self.file {
            file.end(&self.collector.collect());
        }
    }
}

fn begin(name: &str, body: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(body) {
        say(&format!("--metrics: no thread can be started: {error}"));
    }
}

/// The file for node_exporter.
struct MetricsFile {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Fine,
    /// The last attempt failed, and the user knows.
    Failed,
    /// The last version is written.
    Ended,
}

impl MetricsFile {
    fn create(path: &Path, collector: &Collector) -> Result<MetricsFile> {
        if path.extension().is_none_or(|suffix| suffix != "prom") {
            return Err(Error::InvalidArgument(format!(
                "--metrics-file {}: node_exporter reads only files whose name ends in .prom",
                path.display()
            )));
        }
        let file = MetricsFile {
            path: path.to_owned(),
            state: Mutex::new(State::Fine),
        };
        file.write(&collector.without_processes())
            .map_err(|error| Error::Io(failed(error)))?;
        Ok(file)
    }

    /// node_exporter reads the Prometheus text format only.
    fn write(&self, exposition: &Exposition) -> Result<()> {
        write_file(&self.path, |out| {
            out.write_all(exposition.text(Format::Prometheus).as_bytes())
        })
    }

    fn update(&self, exposition: &Exposition) {
        let mut state = self.state.lock();
        if *state == State::Ended {
            return;
        }
        match self.write(exposition) {
            Ok(()) => *state = State::Fine,
            Err(error) => {
                if *state == State::Fine {
                    say(&failed(error));
                }
                *state = State::Failed;
            }
        }
    }

    fn end(&self, exposition: &Exposition) {
        self.update(exposition);
        *self.state.lock() = State::Ended;
    }
}

/// The error of a write, which begins with its kind.
fn failed(error: Error) -> String {
    match error {
        Error::Io(reason) => format!("--metrics-file {reason}"),
        other => format!("--metrics-file: {other}"),
    }
}

/// Listens at the address: a port, with or without a colon, is one of the loopback address.
fn listen(text: &str) -> Result<TcpListener> {
    let addresses = addresses(text)?;
    let listener = TcpListener::bind(&addresses[..]);
    let listener = listener.map_err(|error| Error::Io(format!("--metrics {text}: {error}")))?;
    if let Ok(address) = listener.local_addr() {
        say(&format!("metrics at http://{address}/metrics"));
    }
    Ok(listener)
}

fn addresses(text: &str) -> Result<Vec<SocketAddr>> {
    let refused = || {
        Error::InvalidArgument(format!(
            "--metrics {text}: no address; 9464 or :9464 is a port of this machine only, 0.0.0.0:9464 one of every address"
        ))
    };
    let port = text.strip_prefix(':').unwrap_or(text);
    // A sign is no part of a port.
    if port.bytes().all(|byte| byte.is_ascii_digit()) {
        let port = port.parse().map_err(|_| refused())?;
        return Ok(vec![(IpAddr::V4(Ipv4Addr::LOCALHOST), port).into()]);
    }
    match text.to_socket_addrs().map(Vec::from_iter) {
        Ok(all) if !all.is_empty() => Ok(all),
        Err(error) if error.kind() != std::io::ErrorKind::InvalidInput => {
            Err(Error::InvalidArgument(format!("--metrics {text}: {error}")))
        }
        _ => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_alone_is_of_the_loopback_address() {
        for (text, address) in [
            ("9464", "127.0.0.1:9464"),
            (":9464", "127.0.0.1:9464"),
            ("0", "127.0.0.1:0"),
            ("0.0.0.0:9464", "0.0.0.0:9464"),
            ("[::1]:9464", "[::1]:9464"),
        ] {
            assert_eq!(
                addresses(text).unwrap(),
                [address.parse::<SocketAddr>().unwrap()],
                "{text}"
            );
        }
        for text in ["", ":", "65536", "+1", "127.0.0.1", "127.0.0.1:", "a b:1:2"] {
            assert!(matches!(addresses(text), Err(Error::InvalidArgument(_))), "{text}");
        }
    }
}
