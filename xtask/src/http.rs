//! HTTP/1.1 as far as scripts need it: one request for each connection, the whole answer in memory.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};

/// No answer a script reads is longer.
const BODY_BYTES_MAX: u64 = 16 << 20;
const TIMEOUT: Duration = Duration::from_secs(10);

/// A request's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The status code.
    pub(crate) status: u16,
    /// The body, as text.
    pub(crate) body: String,
}

/// Sends one request and reads the whole answer.
pub(crate) fn request(address: &str, method: &str, path: &str, body: &[u8]) -> Result<Answer> {
    exchange(address, method, path, "", body).wrap_err_with(|| format!("{method} http://{address}{path}"))
}

/// The same without a body, for an API that asks for a token.
pub(crate) fn request_with_token(address: &str, method: &str, path: &str, token: &str) -> Result<Answer> {
    let header = format!("Authorization: Bearer {token}\r\n");
    exchange(address, method, path, &header, b"").wrap_err_with(|| format!("{method} http://{address}{path}"))
}

/// The same with a body.
pub(crate) fn send_with_token(address: &str, method: &str, path: &str, token: &str, body: &[u8]) -> Result<Answer> {
    let header = format!("Authorization: Bearer {token}\r\n");
    exchange(address, method, path, &header, body).wrap_err_with(|| format!("{method} http://{address}{path}"))
}

fn exchange(address: &str, method: &str, path: &str, header: &str, body: &[u8]) -> Result<Answer> {
    let mut stream = TcpStream::connect(address).into_diagnostic()?;
    stream.set_read_timeout(Some(TIMEOUT)).into_diagnostic()?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{header}Content-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).into_diagnostic()?;
    let mut reader = BufReader::new(stream.take(BODY_BYTES_MAX));
    let mut line = String::new();
    reader.read_line(&mut line).into_diagnostic()?;
    let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| miette::miette!("no HTTP status in {line:?}"))?;
    let mut chunked = false;
    loop {
        line.clear();
        reader.read_line(&mut line).into_diagnostic()?;
        if line.trim_end().is_empty() {
            break;
        }
        chunked |= line.to_ascii_lowercase().starts_with("transfer-encoding: chunked");
    }
    let body = if chunked { read_chunks(&mut reader)? } else { read_rest(&mut reader)? };
    Ok(Answer { status, body: String::from_utf8_lossy(&body).into_owned() })
}

fn read_rest(reader: &mut impl std::io::Read) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    reader.read_to_end(&mut body).into_diagnostic()?;
    Ok(body)
}

fn read_chunks(reader: &mut impl std::io::BufRead) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).into_diagnostic()?;
        let size = u64::from_str_radix(line.trim_end(), 16).into_diagnostic().wrap_err("chunk size")?;
        if size == 0 {
            return Ok(body);
        }
        reader.take(size).read_to_end(&mut body).into_diagnostic()?;
        reader.read_line(&mut line).into_diagnostic()?;
    }
}

/// Answers `count` requests on `listener` with 200 and hands over `METHOD path body` of each.
pub(crate) fn collect(listener: TcpListener, count: usize) -> mpsc::Receiver<String> {
    let (found, requests) = mpsc::sync_channel(count);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Clients keep connections open and send several requests; each has a thread, and the suite has few.
            let found = found.clone();
            std::thread::spawn(move || serve(&stream, &found));
        }
    });
    requests
}

fn serve(stream: &TcpStream, found: &mpsc::SyncSender<String>) -> Option<()> {
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut first = String::new();
        reader.read_line(&mut first).ok().filter(|length| *length > 0)?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            if line.trim_end().is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let target = first.trim_end().trim_end_matches(" HTTP/1.1");
        found.send(format!("{target} {}", String::from_utf8_lossy(&body))).ok()?;
        let mut writer = stream;
        writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").ok()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_arrives_whole_and_its_answer_comes_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests = collect(listener, 1);
        let client = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.write_all(b"POST /a?b=c HTTP/1.1\r\nContent-Length: 3\r\n\r\nxyz").unwrap();
            let mut answer = [0; 15];
            stream.read_exact(&mut answer).unwrap();
            answer
        });
        assert_eq!(requests.recv().unwrap(), "POST /a?b=c xyz");
        assert_eq!(&client.join().unwrap(), b"HTTP/1.1 200 OK");
    }

    #[test]
    fn chunks_are_joined() {
        assert_eq!(read_chunks(&mut &b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"[..]).unwrap(), b"abcde");
    }
}
