//! HTTP/1.1 over a socket: small enough to see what goes over the wire.

use std::collections::HashMap;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

pub(crate) struct Client {
    pub(crate) address: String,
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The field of the error body.
    pub(crate) fn error(&self, field: &str) -> String {
        self.json()["error"][field]
            .as_str()
            .unwrap_or_else(|| panic!("no {field}: {}", self.text()))
            .to_owned()
    }

    /// The data of every event of a stream.
    pub(crate) fn events(&self) -> Vec<&str> {
        self.text().lines().filter_map(|line| line.strip_prefix("data: ")).collect()
    }

    /// The events of a stream that ended with `[DONE]`.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let events = self.events();
        let (last, chunks) = events.split_last().unwrap();
        assert_eq!(*last, "[DONE]");
        chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect()
    }
}

impl Client {
    pub(crate) async fn get(&self, path: &str) -> Response {
        self.send("GET", path, &[], b"").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Response {
        let body = body.to_string();
        self.send("POST", path, &[("content-type", "application/json")], body.as_bytes()).await
    }

    /// Sends one request on a connection of its own and reads the whole response.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Response {
        self.open(method, path, headers, body).await.whole().await
    }

    /// Sends one request and reads up to the body.
    pub(crate) async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> LiveResponse {
        LiveResponse::read(self.connect(method, path, headers, body).await).await
    }

    /// Posts a body that is already in chunked coding.
    pub(crate) async fn send_chunked(&self, path: &str, chunks: &[u8]) -> Response {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let _ = stream.write_all(chunks).await;
        LiveResponse::read(BufReader::new(stream)).await.whole().await
    }

    /// Sends one request and reads nothing.
    pub(crate) async fn connect(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}\r\n",
            body.len()
        );
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        // A server that refuses the request may close before it has read the body.
        let _ = stream.write_all(body).await;
        BufReader::new(stream)
    }
}

/// A response whose body is still coming.
pub(crate) struct LiveResponse {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    stream: BufReader<TcpStream>,
    is_over: bool,
}

impl LiveResponse {
    async fn read(mut stream: BufReader<TcpStream>) -> Self {
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        let status =
            line.split(' ').nth(1).unwrap_or_else(|| panic!("status line {line:?}")).parse().unwrap();
        let mut headers = HashMap::new();
        loop {
            line.clear();
            stream.read_line(&mut line).await.unwrap();
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        Self { status, headers, stream, is_over: false }
    }

    async fn whole(mut self) -> Response {
        let mut body = Vec::new();
        while let Some(piece) = self.piece().await {
            body.extend(piece);
        }
        Response { status: self.status, headers: self.headers, body }
    }

    /// The next part of the body; `None` at its end.
    pub(crate) async fn piece(&mut self) -> Option<Vec<u8>> {
        if self.is_over {
            return None;
        }
        if self.headers.contains_key("transfer-encoding") {
            let mut line = String::new();
            self.stream.read_line(&mut line).await.unwrap();
            let length = usize::from_str_radix(line.trim(), 16).unwrap();
            let mut piece = vec![0; length + 2];
            self.stream.read_exact(&mut piece).await.unwrap();
            piece.truncate(length);
            self.is_over = length == 0;
            return (!self.is_over).then_some(piece);
        }
        self.is_over = true;
        let length = self.headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.unwrap();
        Some(body)
    }
}
