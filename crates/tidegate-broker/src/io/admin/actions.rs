//! Acting on topics and channels.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tidegate_wire::nsq::{BadName, ChannelName, TopicName};

use tidegate_runtime::http::Problem;

use super::Shared;
use super::outcome::outcome;
use crate::machine::admin::{AdminRequest, Pause, Recording};

enum Action {
    Empty,
    Pause(Pause),
    /// What waits under a limit that was taken away goes at once.
    Release,
}

impl Action {
    fn named(name: &str) -> Result<Self, Problem> {
        match name {
            "empty" => Ok(Self::Empty),
            "pause" => Ok(Self::Pause(Pause::Paused)),
            "unpause" => Ok(Self::Pause(Pause::Flowing)),
            "release" => Ok(Self::Release),
            _ => Err(Problem::not_found(format!("`{name}` is no action; there are pause, unpause, empty and release"))),
        }
    }
}

pub(super) fn topic_name(name: &str) -> Result<TopicName, Problem> {
    TopicName::new(name).map_err(|error| bad_name("topic", name, error))
}

pub(super) fn channel_name(name: &str) -> Result<ChannelName, Problem> {
    ChannelName::new(name).map_err(|error| bad_name("channel", name, error))
}

fn bad_name(what: &str, name: &str, rule: BadName) -> Problem {
    let shown: String = name.chars().take(80).collect();
    Problem::bad_request(format!("`{shown}` is no {what}'s name: {rule}"))
}

type Done = Result<StatusCode, Problem>;

impl Shared {
    async fn tell(&self, topic: &TopicName, what: &str, request: AdminRequest) -> Done {
        outcome(self.admin.broker.ask_topic(topic, request).await, what).map(|()| StatusCode::NO_CONTENT)
    }
}

pub(super) async fn act_on_topic(State(shared): State<Shared>, Path((name, action)): Path<(String, String)>) -> Done {
    let topic = topic_name(&name)?;
    let request = match Action::named(&action)? {
        Action::Empty => AdminRequest::EmptyTopic(topic.clone()),
        Action::Pause(pause) => AdminRequest::PauseTopic(topic.clone(), pause),
        Action::Release => AdminRequest::ReleaseLine(topic.clone()),
    };
    shared.tell(&topic, &name, request).await
}

pub(super) async fn act_on_channel(
    State(shared): State<Shared>,
    Path((topic, name, action)): Path<(String, String, String)>,
) -> Done {
    let what = format!("{topic}/{name}");
    let (topic, channel) = (topic_name(&topic)?, channel_name(&name)?);
    let request = match Action::named(&action)? {
        Action::Empty => AdminRequest::EmptyChannel(topic.clone(), channel),
        Action::Pause(pause) => AdminRequest::PauseChannel(topic.clone(), channel, pause),
        Action::Release => {
            return Err(Problem::not_found(
                "a channel's limit has no line; `release` is an action on topics".to_owned(),
            ));
        }
    };
    shared.tell(&topic, &what, request).await
}

pub(super) async fn delete_topic(State(shared): State<Shared>, Path(name): Path<String>) -> Done {
    let topic = topic_name(&name)?;
    shared.tell(&topic, &name, AdminRequest::DeleteTopic(topic.clone())).await
}

pub(super) async fn delete_channel(State(shared): State<Shared>, Path((topic, name)): Path<(String, String)>) -> Done {
    let what = format!("{topic}/{name}");
    let (topic, channel) = (topic_name(&topic)?, channel_name(&name)?);
    shared.tell(&topic, &what, AdminRequest::DeleteChannel(topic.clone(), channel)).await
}

/// How long a trace is to be.
#[derive(Deserialize)]
pub(super) struct Length {
    seconds: Option<u64>,
}

/// Longest trace, s; one of a busy topic takes a gigabyte by then.
const TRACE_MAX_S: u64 = 3_600;
const TRACE_DEFAULT_S: u64 = 60;

/// Begins a trace of the topic, which ends by itself.
pub(super) async fn record(
    State(shared): State<Shared>,
    Path(name): Path<String>,
    Query(length): Query<Length>,
) -> Done {
    let topic = topic_name(&name)?;
    let seconds = length.seconds.unwrap_or(TRACE_DEFAULT_S);
    if !(1..=TRACE_MAX_S).contains(&seconds) {
        return Err(Problem::bad_request(format!("`seconds` is {seconds}; a trace lasts 1 to {TRACE_MAX_S} seconds")));
    }
    shared.tell(&topic, &name, AdminRequest::Record(topic.clone(), Recording::On)).await?;
    let broker = shared.admin.broker.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        broker.ask_topic(&topic, AdminRequest::Record(topic.clone(), Recording::Off)).await;
    });
    Ok(StatusCode::ACCEPTED)
}

/// Ends the topic's trace now.
pub(super) async fn stop_recording(State(shared): State<Shared>, Path(name): Path<String>) -> Done {
    let topic = topic_name(&name)?;
    shared.tell(&topic, &name, AdminRequest::Record(topic.clone(), Recording::Off)).await
}

/// Largest trace that is handed out: four million messages.
const TRACE_BYTES_MAX: u64 = 256 << 20;

/// The topic's last trace, as far as it is written.
pub(super) async fn trace(State(shared): State<Shared>, Path(name): Path<String>) -> Result<Response, Problem> {
    let topic = topic_name(&name)?;
    let path = shared.admin.config.data_path.join(format!("{topic}.trace"));
    let read = tokio::task::spawn_blocking(move || read_trace(path)).await.expect("it returns its errors");
    match read {
        Ok(Some(text)) => Ok(([(CONTENT_TYPE, "text/csv")], text).into_response()),
        Ok(None) => {
            let detail = format!("the trace of `{topic}` is larger than {TRACE_BYTES_MAX} bytes; record for less time");
            Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "trace", "The trace is too large", detail))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Problem::not_found(format!("`{topic}` has no trace; POST to this path begins one")))
        }
        Err(error) => {
            let detail = format!("the trace of `{topic}` cannot be read: {error}");
            Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "trace", "The trace cannot be read", detail))
        }
    }
}

/// `None` if it is too large.
fn read_trace(path: PathBuf) -> io::Result<Option<Vec<u8>>> {
    let mut text = Vec::new();
    File::open(path)?.take(TRACE_BYTES_MAX + 1).read_to_end(&mut text)?;
    Ok((text.len() as u64 <= TRACE_BYTES_MAX).then_some(text))
}
