//! Listening, and leaving in order: requests in flight are finished before the server goes.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::watch;

use super::app::App;
use super::router;

/// Time for the last bytes of finished responses to reach their clients.
const FLUSH_TIME: Duration = Duration::from_secs(2);

/// A bound address.
#[derive(Debug)]
pub enum Listener {
    /// Host and port.
    Tcp(TcpListener),
    /// A Unix socket; its file is removed when the server ends.
    Unix(UnixListener, PathBuf),
}

/// Why a server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another program has the port.
    #[error(
        "port {port} on {host} is already in use; stop the program that has it, or choose another port with --port"
    )]
    PortInUse {
        /// Address as given.
        host: String,
        /// The port.
        port: u16,
    },
    /// The system refuses the address.
    #[error("cannot listen on {address}: {source}; check --host, --port and --uds")]
    Refused {
        /// Host and port, or path.
        address: String,
        /// What the system reported.
        source: io::Error,
    },
    /// Another server answers on the socket.
    #[error("the socket {} belongs to a running server; stop it, or choose another path with --uds", path.display())]
    SocketInUse {
        /// Path of the socket.
        path: PathBuf,
    },
}

impl Listener {
    /// Listens on a port; 0 takes any free one.
    pub async fn tcp(host: &str, port: u16) -> Result<Self, ListenError> {
        TcpListener::bind((host, port)).await.map(Self::Tcp).map_err(|source| {
            if source.kind() == io::ErrorKind::AddrInUse {
                ListenError::PortInUse { host: host.to_owned(), port }
            } else {
                ListenError::Refused { address: format!("{host}:{port}"), source }
            }
        })
    }

    /// Listens on a Unix socket. A file that a dead server left behind is replaced.
    pub async fn unix(path: &Path) -> Result<Self, ListenError> {
        if UnixStream::connect(path).await.is_ok() {
            return Err(ListenError::SocketInUse { path: path.to_owned() });
        }
        let refused = |source| ListenError::Refused { address: path.display().to_string(), source };
        if is_socket(path) {
            std::fs::remove_file(path).map_err(refused)?;
        }
        UnixListener::bind(path).map(|listener| Self::Unix(listener, path.to_owned())).map_err(refused)
    }

    /// Where clients find the server.
    pub fn address(&self) -> io::Result<String> {
        match self {
            Self::Tcp(listener) => Ok(format!("http://{}", listener.local_addr()?)),
            Self::Unix(_, path) => Ok(format!("unix:{}", path.display())),
        }
    }
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Every request was answered.
    Drained,
    /// The time was up with this many requests unfinished.
    TimedOut {
        /// Requests that were cut off.
        unfinished: usize,
    },
}

/// Serves until `shutdown` resolves, then finishes what runs for at most `drain_timeout`.
///
/// While draining, new requests get 503 and `/health` says so.
pub async fn serve(
    app: Arc<App>,
    listener: Listener,
    shutdown: impl Future<Output = ()> + Send + 'static,
    drain_timeout: Duration,
) -> io::Result<Ending> {
    let (set_ending, ending) = watch::channel(None);
    let for_drain = Arc::clone(&app);
    let close = async move {
        shutdown.await;
        set_ending.send_replace(Some(drain(&for_drain, drain_timeout).await));
    };
    let router = router(app);
    let serving = async move {
        match listener {
            Listener::Tcp(listener) => {
                let listener = listener.tap_io(|stream| {
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "TCP_NODELAY could not be set");
                    }
                });
                axum::serve(listener, router).with_graceful_shutdown(close).await
            }
            Listener::Unix(listener, path) => {
                let result = axum::serve(listener, router).with_graceful_shutdown(close).await;
                if let Err(error) = std::fs::remove_file(&path) {
                    tracing::debug!(%error, path = %path.display(), "the socket file could not be removed");
                }
                result
            }
        }
    };
    tokio::select! {
        result = serving => result?,
        () = flushed(ending.clone()) => {}
    }
    let ending = *ending.borrow();
    Ok(ending.unwrap_or(Ending::Drained))
}

/// Resolves when connections have had their time after the drain: none if it timed out.
async fn flushed(mut ending: watch::Receiver<Option<Ending>>) {
    let ended = ending.wait_for(Option::is_some).await.map(|ending| *ending);
    match ended {
        Ok(Some(Ending::TimedOut { .. })) => {}
        Ok(_) => tokio::time::sleep(FLUSH_TIME).await,
        Err(_) => std::future::pending().await,
    }
}

async fn drain(app: &App, timeout: Duration) -> Ending {
    let Some(model) = app.model() else { return Ending::Drained };
    model.engine.drain();
    if tokio::time::timeout(timeout, model.engine.drained()).await.is_ok() {
        return Ending::Drained;
    }
    let snapshot = model.engine.snapshot();
    Ending::TimedOut { unfinished: snapshot.running + snapshot.waiting }
}
