//! Who is told that brokers are missing: a program, or a web server.

use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use crate::config::Hook;
use crate::error::with_causes;

/// A hook that takes longer is ended.
const WITHIN: Duration = Duration::from_secs(30);

/// What a hook is told.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Shortage {
    /// The topic without a placement.
    pub topic: String,
    /// Messages per second that have no broker.
    pub missing_per_s: f64,
    /// The cause and what was decided before, each a sentence.
    pub words: Vec<String>,
}

/// Calls `hook`; what goes wrong is logged.
pub async fn call(hook: Hook, shortage: Shortage) {
    let body = serde_json::to_vec(&shortage).expect("texts and a finite number");
    let called = timeout(WITHIN, async {
        match hook {
            Hook::Command(words) => run(&words, &body).await,
            Hook::Webhook { authority, path } => post(&authority, &path, body).await,
        }
    });
    match called.await {
        Ok(Ok(())) => tracing::info!(topic = shortage.topic, "on_out_of_brokers was called"),
        Ok(Err(error)) => tracing::warn!(topic = shortage.topic, error, "on_out_of_brokers failed"),
        Err(_) => tracing::warn!(topic = shortage.topic, "on_out_of_brokers took longer than {WITHIN:?} and was ended"),
    }
}

async fn run(words: &[String], body: &[u8]) -> Result<(), String> {
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    let mut command = Command::new(program);
    // A hook that is given up ends with its handle.
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::inherit()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
    if let Some(mut input) = child.stdin.take() {
        // A program that does not read it is none the worse.
        let _ = input.write_all(body).await;
    }
    let status = child.wait().await.map_err(|error| format!("{program}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{program}: {status}")) }
}

async fn post(authority: &str, path: &str, body: Vec<u8>) -> Result<(), String> {
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("http://{authority}{path}"))
        .header(header::USER_AGENT, "tidegate control")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| with_causes(&error))?;
    let http: Client<HttpConnector, Full<Bytes>> = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
    let answer = http.request(request).await.map_err(|error| with_causes(&error))?;
    if answer.status().is_success() { Ok(()) } else { Err(format!("{authority} answered {}", answer.status())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortage() -> Shortage {
        Shortage { topic: "orders".to_owned(), missing_per_s: 4_000.0, words: vec!["too little".to_owned()] }
    }

    #[tokio::test]
    async fn a_program_reads_the_shortage() {
        let file = std::env::temp_dir().join(format!("tidegate-hook-{}", std::process::id()));
        let words = ["sh", "-c", "cat > \"$0\"", &file.display().to_string()].map(str::to_owned);
        call(Hook::Command(words.to_vec()), shortage()).await;
        let told: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!((&told["topic"], &told["missing_per_s"]), (&"orders".into(), &4_000.0.into()));
        std::fs::remove_file(file).unwrap();
        assert_eq!(run(&["false".to_owned()], b"").await, Err("false: exit status: 1".to_owned()));
    }

    #[tokio::test]
    async fn a_web_server_is_posted_the_shortage() {
        let (sender, mut told) = tokio::sync::mpsc::channel(1);
        let take = move |body: String| async move { drop(sender.send(body).await) };
        let router = axum::Router::new().route("/hook", axum::routing::post(take));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await });
        call(Hook::Webhook { authority: authority.clone(), path: "/hook".to_owned() }, shortage()).await;
        assert!(told.recv().await.unwrap().contains("\"missing_per_s\":4000.0"));
        assert!(post(&authority, "/elsewhere", Vec::new()).await.unwrap_err().ends_with("404 Not Found"));
    }
}
