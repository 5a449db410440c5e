//! `/pub` and `/mpub`.

use std::time::Duration;

use axum::extract::Request;
use axum::http::request::Parts;

use super::answer::{Answer, Refusal, outcome};
use super::serve::ClientAddress;
use super::{ApiState, query::Query};
use crate::machine::admin::AdminRequest;
use crate::machine::publishers::{HttpPublisher, Label};

/// What a publish is correlated with, as the publisher says.
const CORRELATION: &str = "tidegate-correlation";

impl ApiState {
    /// `POST /pub?topic=..[&defer=ms][&correlation=..]`: the body is one message.
    pub(super) async fn publish(&self, request: Request) -> Result<Answer, Refusal> {
        let (head, body) = request.into_parts();
        let too_big = Refusal::too_big("MSG_TOO_BIG");
        let mut taken = self.bodies.read(&head.headers, body, self.config.max_msg_size, &too_big).await?;
        if taken.bytes.is_empty() {
            return Err(Refusal::bad("MSG_EMPTY"));
        }
        let query = Query::of(&head.uri)?;
        let topic = query.topic(Refusal::bad("INVALID_TOPIC"))?;
        let defer = query.first("defer").map(|ms| self.defer(ms)).transpose()?;
        let by = publisher(&head, &query)?;
        let bodies = vec![std::mem::take(&mut taken.bytes)];
        let request = AdminRequest::Publish { topic: topic.clone(), bodies, defer, by };
        outcome(self.broker.ask_topic(&topic, request).await)?;
        Ok(Answer::OK)
    }

    fn defer(&self, ms: &str) -> Result<Duration, Refusal> {
        let span = ms.parse::<i64>().ok().and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
        span.filter(|span| *span <= self.config.max_req_timeout).ok_or(Refusal::bad("INVALID_DEFER"))
    }

    /// `POST /mpub?topic=..[&binary=true][&correlation=..]`: the body is a message a line, or as the command MPUB has it.
    pub(super) async fn publish_many(&self, request: Request) -> Result<Answer, Refusal> {
        let (head, body) = request.into_parts();
        let query = Query::of(&head.uri)?;
        let topic = query.topic(Refusal::bad("INVALID_TOPIC"))?;
        let by = publisher(&head, &query)?;
        // Anything but these four words means binary, as it did before there was a text form to choose.
        let binary = query.first("binary").is_some() && query.switch("binary").unwrap_or(true);
        let too_big = Refusal::too_big("BODY_TOO_BIG");
        let taken = self.bodies.read(&head.headers, body, self.config.max_body_size, &too_big).await?;
        let bodies = if binary { self.counted(&taken.bytes)? } else { self.lines(&taken.bytes)? };
        let request = if bodies.is_empty() {
            // Empty lines are no messages, but the topic exists from now on.
            AdminRequest::CreateTopic(topic.clone())
        } else {
            AdminRequest::Publish { topic: topic.clone(), bodies, defer: None, by }
        };
        outcome(self.broker.ask_topic(&topic, request).await)?;
        Ok(Answer::OK)
    }

    fn lines(&self, text: &[u8]) -> Result<Vec<Vec<u8>>, Refusal> {
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let fits = |line: &[u8]| {
            let small = line.len() as u64 <= u64::from(self.config.max_msg_size);
            if small { Ok(line.to_vec()) } else { Err(Refusal::too_big("MSG_TOO_BIG")) }
        };
        lines.map(fits).collect()
    }

    fn counted(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Refusal> {
        let mut rest = bytes;
        let count = take_length(&mut rest).ok_or(Refusal::too_big("BAD_BODY"))?;
        // A message takes five bytes at least: its length and one of its own.
        let most = self.config.max_body_size.saturating_sub(4) / 5;
        if !(1..=most).contains(&count) {
            return Err(Refusal::too_big("BAD_BODY"));
        }
        let mut message = || {
            let length = take_length(&mut rest).filter(|length| (1..=self.config.max_msg_size).contains(length))?;
            let (body, tail) = rest.split_at_checked(length as usize)?;
            rest = tail;
            Some(body.to_vec())
        };
        (0..count).map(|_| message().ok_or(Refusal::too_big("BAD_MESSAGE"))).collect()
    }
}

/// The publisher of a request over HTTP. The header's correlation key outranks the parameter's.
fn publisher(head: &Parts, query: &Query) -> Result<HttpPublisher, Refusal> {
    let invalid = Refusal::bad("INVALID_CORRELATION");
    let said = match head.headers.get(CORRELATION) {
        Some(value) => Some(std::str::from_utf8(value.as_bytes()).map_err(|_| invalid.clone())?),
        None => query.first("correlation"),
    };
    let correlation = said.filter(|said| !said.is_empty()).map(Label::new).transpose().map_err(|_| invalid)?;
    let address = head.extensions.get::<ClientAddress>().and_then(|client| client.0);
    Ok(HttpPublisher { address, correlation })
}

/// A length in front of `bytes`; negative ones count as too large.
fn take_length(bytes: &mut &[u8]) -> Option<u32> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    *bytes = rest;
    Some(u32::from_be_bytes(*length))
}
