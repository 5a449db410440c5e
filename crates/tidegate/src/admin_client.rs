//! Requests to an admin API, for the verbs that read and change a running broker, proxy, control or shaper.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueHint};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::failure::Failure;
use crate::token::{Token, TokenError};

/// A broker with ten thousand topics answers about 10 MiB.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// The broker answers from memory; what takes longer is not coming.
const PATIENCE: Duration = Duration::from_secs(10);

/// The admin API of a running broker, proxy, control or shaper.
pub(crate) struct AdminClient {
    /// Whose it is.
    pub(crate) of: Of,
    /// `host:port`.
    pub(crate) address: String,
    /// For writes, and for reads from the network.
    pub(crate) token: Option<Token>,
}

/// Who has an admin API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Of {
    Broker,
    Proxy,
    Control,
    Shaper,
}

/// What lets us read from another machine.
#[derive(Debug, Args)]
pub(crate) struct ReadToken {
    /// The file with the token, which an admin API on a network address wants for reads as well
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: Option<PathBuf>,
}

impl ReadToken {
    /// The token, if a file of one was named.
    pub(crate) fn load(&self, of: Of) -> Result<Option<Token>, Failure> {
        self.token_file.as_deref().map(|file| load_token(file, of)).transpose()
    }
}

/// The token in `file`.
pub(crate) fn load_token(file: &Path, of: Of) -> Result<Token, Failure> {
    Token::load(file).map_err(|error| {
        let help = match error {
            TokenError::Io { .. } => {
                format!("name the running {}'s token file with --token-file; its user can read it", of.word())
            }
            _ => error.remedy(),
        };
        Failure::new(&error).help(help).because(error)
    })
}

/// The command with the user who runs it: the history of limits shows it.
fn user_agent() -> String {
    let user = ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    let user: String = user.unwrap_or_default().chars().filter(char::is_ascii_graphic).take(64).collect();
    if user.is_empty() { "tidegate".to_owned() } else { format!("tidegate ({user})") }
}

impl Of {
    fn word(self) -> &'static str {
        match self {
            Self::Broker => "broker",
            Self::Proxy => "proxy",
            Self::Control => "control",
            Self::Shaper => "shaper",
        }
    }
}

/// `host:port` of an argument.
pub(crate) fn authority(text: &str) -> Result<String, String> {
    let port =
        text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, port)| port.parse::<u16>().ok());
    match port {
        Some(1..) => Ok(text.to_owned()),
        _ => Err("expected address:port, such as 127.0.0.1:4153, with a port from 1 to 65535".to_owned()),
    }
}

/// The part of `application/problem+json` that a person needs.
#[derive(Deserialize)]
struct Problem {
    title: String,
    #[serde(default)]
    detail: String,
}

impl AdminClient {
    /// Asks once; an answer that is no success is a failure.
    pub(crate) fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::new("cannot start").because(error))?;
        let is_read = method == Method::GET;
        let answer = runtime.block_on(async { timeout(PATIENCE, self.exchange(method, path, body)).await });
        let (status, bytes) =
            answer.map_err(|_| self.unreachable().help("it took the connection but did not answer"))??;
        if status == StatusCode::NO_CONTENT {
            return Ok(Value::Null);
        }
        if status.is_success() {
            return serde_json::from_slice(&bytes)
                .map_err(|error| Failure::new(format!("{} did not answer in JSON", self.address)).because(error));
        }
        // What is read is there in every broker and in every proxy.
        if is_read && status == StatusCode::NOT_FOUND {
            return Err(self.nobody(format_args!("what answers at {} is no {}", self.address, self.who())));
        }
        if status == StatusCode::UNAUTHORIZED && self.token.is_none() {
            return Err(Failure::new(format!("what is read at {} needs a token", self.address))
                .help("name the file with it: --token-file FILE"));
        }
        Err(match serde_json::from_slice(&bytes) {
            Ok(Problem { title, detail }) => Failure::new(title).help(detail),
            Err(_) => Failure::new(format!("{} answered {status}", self.address)),
        })
    }

    async fn exchange(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(StatusCode, Bytes), Failure> {
        let stream = TcpStream::connect(&self.address).await.map_err(|error| self.unreachable().because(error))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.broken(error))?;
        let connection = tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", &self.address);
        request = request.header("user-agent", user_agent());
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {}", token.reveal()));
        }
        let body = match body {
            Some(body) => {
                request = request.header("content-type", "application/json");
                Bytes::from(body.to_string())
            }
            None => Bytes::new(),
        };
        let request = request
            .body(Full::new(body))
            .map_err(|error| Failure::usage(format!("{:?} is no address", self.address)).because(error))?;
        let answer = sender.send_request(request).await.map_err(|error| self.broken(error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES)
            .collect()
            .await
            .map_err(|error| Failure::new(format!("{} broke its answer off: {error}", self.address)))?;
        connection.abort();
        Ok((status, body.to_bytes()))
    }

    fn who(&self) -> &'static str {
        self.of.word()
    }

    fn unreachable(&self) -> Failure {
        self.nobody(format_args!("no {} answers at {}", self.who(), self.address))
    }

    fn broken(&self, error: hyper::Error) -> Failure {
        self.nobody(format_args!("{} does not speak HTTP", self.address)).because(error)
    }

    /// There is no admin API of this kind.
    fn nobody(&self, message: std::fmt::Arguments<'_>) -> Failure {
        Failure::new(message).help(match self.of {
            Of::Broker => {
                "is `tidegate up` running? --admin names another address, as the key admin.address of its file does"
            }
            Of::Proxy => "is `tidegate proxy` running? its admin API is the key proxy.admin_address of its file",
            Of::Control => {
                "is `tidegate control` running? --control names another address, as the key control.listen does"
            }
            Of::Shaper => {
                "is `tidegate shaper` running? --admin names another address, as the key shaper.admin_address does"
            }
        })
    }
}
