//! The part of the hub's HTTP interface that a download needs, on loopback.

use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A file of the repository `org/model`.
#[derive(Clone)]
pub(super) struct RemoteFile {
    pub(super) name: String,
    pub(super) content: Vec<u8>,
    /// Size in the file list, if it is not the true one.
    pub(super) claimed_size: Option<u64>,
    /// The first transfer breaks after this many bytes.
    pub(super) break_once_at: Option<usize>,
    large: bool,
}

impl RemoteFile {
    /// Served by the hub itself.
    pub(super) fn small(name: &str, content: &[u8]) -> Self {
        let (name, content) = (name.to_owned(), content.to_owned());
        Self { name, content, claimed_size: None, break_once_at: None, large: false }
    }

    /// Served by another address, to which the hub redirects.
    pub(super) fn large(name: &str, content: &[u8]) -> Self {
        Self { large: true, ..Self::small(name, content) }
    }

    /// Name of the content, as the etag gives it.
    pub(super) fn blob(&self) -> String {
        let mut hasher = DefaultHasher::new();
        hasher.write(&self.content);
        format!("{:016x}", hasher.finish())
    }
}

struct State {
    commit: String,
    address: SocketAddr,
    files: Mutex<Vec<RemoteFile>>,
    token: Mutex<Option<String>>,
    requests: Mutex<Vec<String>>,
    stop: AtomicBool,
}

/// A running server; stops when dropped.
pub(super) struct FakeHub {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl FakeHub {
    pub(super) fn start(commit: &str, files: Vec<RemoteFile>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = Arc::new(State {
            commit: commit.to_owned(),
            address: listener.local_addr().unwrap(),
            files: Mutex::new(files),
            token: Mutex::new(None),
            requests: Mutex::new(vec![]),
            stop: AtomicBool::new(false),
        });
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.stop.load(Ordering::SeqCst) {
                    break;
                }
                // A client that goes away is the test's business.
                let _ = shared.answer(stream.unwrap());
            }
        });
        Self { state, thread: Some(thread) }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.state.address)
    }

    /// From now on every request to the hub needs this token.
    pub(super) fn require_token(&self, token: &str) {
        *self.state.token.lock().unwrap() = Some(token.to_owned());
    }

    /// "path range" of every request so far.
    pub(super) fn requests(&self) -> Vec<String> {
        self.state.requests.lock().unwrap().clone()
    }
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.state.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl State {
    fn answer(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let path = lines.next().unwrap_or(Ok(String::new()))?.split(' ').nth(1).unwrap_or("").to_owned();
        let (mut range, mut token) = (String::new(), String::new());
        for line in lines {
            let line = line?;
            match line.split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("range") => range = value.to_owned(),
                Some((name, value)) if name.eq_ignore_ascii_case("authorization") => token = value.to_owned(),
                Some(_) => {}
                None => break,
            }
        }
        self.requests.lock().unwrap().push(format!("{path} {range}"));
        let needed = self.token.lock().unwrap().clone();
        let denied = needed.is_some_and(|needed| token != format!("Bearer {needed}"));
        let (cdn, resolve) = ("/cdn/", format!("/org/model/resolve/{}/", self.commit));
        let list = ["main", &self.commit].map(|r| format!("/api/models/org/model/revision/{r}?blobs=true"));
        if let Some(name) = path.strip_prefix(cdn) {
            self.send_content(stream, name, &range)
        } else if denied {
            send(stream, "401 Unauthorized", &[], b"")
        } else if list.contains(&path) {
            send(stream, "200 OK", &[], self.file_list().as_bytes())
        } else if let Some(name) = path.strip_prefix(&resolve) {
            self.send_resolved(stream, name, &range)
        } else {
            send(stream, "404 Not Found", &[], b"")
        }
    }

    fn file_list(&self) -> String {
        let files = self.files.lock().unwrap();
        let siblings: Vec<_> = files
            .iter()
            .map(|f| {
                let size = f.claimed_size.unwrap_or(f.content.len() as u64);
                let lfs = f.large.then(|| serde_json::json!({ "sha256": f.blob(), "size": size }));
                serde_json::json!({ "rfilename": f.name, "size": size, "blobId": f.blob(), "lfs": lfs })
            })
            .collect();
        serde_json::json!({ "id": "org/model", "sha": self.commit, "siblings": siblings }).to_string()
    }

    fn send_resolved(&self, stream: TcpStream, name: &str, range: &str) -> std::io::Result<()> {
        let file = self.files.lock().unwrap().iter().find(|f| f.name == name).cloned();
        let Some(file) = file else { return send(stream, "404 Not Found", &[], b"") };
        let commit = format!("X-Repo-Commit: {}", self.commit);
        if file.large {
            let etag = format!("X-Linked-Etag: \"{}\"", file.blob());
            let location = format!("Location: http://{}/cdn/{name}", self.address);
            return send(stream, "302 Found", &[&commit, &etag, &location], b"");
        }
        let etag = format!("ETag: \"{}\"", file.blob());
        send_range(stream, &file.content, range, &[&commit, &etag])
    }

    fn send_content(&self, mut stream: TcpStream, name: &str, range: &str) -> std::io::Result<()> {
        let mut files = self.files.lock().unwrap();
        let Some(file) = files.iter_mut().find(|f| f.name == name) else {
            return send(stream, "404 Not Found", &[], b"");
        };
        if let Some(at) = file.break_once_at.filter(|_| range != "bytes=0-0") {
            file.break_once_at = None;
            let length = file.content.len();
            write!(stream, "HTTP/1.1 206 Partial Content\r\nContent-Length: {length}\r\n\r\n")?;
            return stream.write_all(&file.content[..at]);
        }
        send_range(stream, &file.content, range, &[])
    }
}

fn send_range(stream: TcpStream, content: &[u8], range: &str, headers: &[&str]) -> std::io::Result<()> {
    let total = content.len();
    let (begin, end) = range.strip_prefix("bytes=").and_then(|r| r.split_once('-')).unwrap_or(("0", ""));
    let begin: usize = begin.parse().unwrap_or(0);
    let end = end.parse::<usize>().map_or(total, |last| (last + 1).min(total));
    if begin >= end {
        return send(stream, "416 Range Not Satisfiable", &[], b"");
    }
    let content_range = format!("Content-Range: bytes {begin}-{}/{total}", end - 1);
    let headers: Vec<&str> = headers.iter().copied().chain([content_range.as_str()]).collect();
    send(stream, "206 Partial Content", &headers, &content[begin..end])
}

fn send(mut stream: TcpStream, status: &str, headers: &[&str], body: &[u8]) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n", body.len())?;
    for header in headers {
        write!(stream, "{header}\r\n")?;
    }
    stream.write_all(b"\r\n")?;
    stream.write_all(body)
}
