//! `/info` and `/config/{option}`.

use axum::extract::Request;
use axum::http::Method;
use serde::Serialize;
use serde_json::Value;

use super::ApiState;
use super::answer::{Answer, Refusal};
use crate::config::LogLevel;
use crate::config::value::Value as _;

/// Most nsqlookupds that can be set live. Each costs a task and a connection.
const MOST_LOOKUPDS: usize = 64;

#[derive(Serialize)]
struct Info<'a> {
    version: &'a str,
    broadcast_address: &'a str,
    hostname: &'a str,
    http_port: i32,
    tcp_port: i32,
    start_time: i64,
    max_heartbeat_interval: u64,
    max_output_buffer_size: u32,
    max_output_buffer_timeout: u64,
    max_deflate_level: u8,
}

impl ApiState {
    /// `GET /info`.
    pub(super) fn info(&self) -> Answer {
        let config = &self.config;
        Answer::json(&Info {
            version: super::NSQD_VERSION,
            broadcast_address: &config.broadcast_address,
            hostname: &self.node.hostname,
            http_port: self.node.http.info(),
            tcp_port: self.node.tcp.info(),
            start_time: self.node.start_time_s,
            max_heartbeat_interval: tidegate_core::time::nanos(config.max_heartbeat_interval),
            max_output_buffer_size: config.max_output_buffer_size,
            max_output_buffer_timeout: tidegate_core::time::nanos(config.max_output_buffer_timeout),
            max_deflate_level: config.max_deflate_level,
        })
    }

    /// `GET` or `PUT /config/{option}`. Two options can be set: the nsqlookupds and the log level.
    pub(super) async fn setting(&self, option: &str, request: Request) -> Result<Answer, Refusal> {
        if request.method() == Method::PUT {
            let (head, body) = request.into_parts();
            let invalid = Refusal::too_big("INVALID_VALUE");
            let taken = self.bodies.read(&head.headers, body, self.config.max_msg_size, &invalid).await?;
            if taken.bytes.is_empty() {
                return Err(invalid);
            }
            self.change(option, &taken.bytes)?;
        }
        // nsqd shows text as it is and everything else as JSON.
        match self.value_of(option).ok_or(Refusal::bad("INVALID_OPTION"))? {
            Value::String(text) => Ok(Answer::Text(text.into())),
            other => Ok(Answer::json(&other)),
        }
    }

    fn change(&self, option: &str, value: &[u8]) -> Result<(), Refusal> {
        let invalid = || Refusal::bad("INVALID_VALUE");
        match option {
            "nsqlookupd_tcp_addresses" => {
                let addresses = serde_json::from_slice::<Option<Vec<String>>>(value).map_err(|_| invalid())?;
                let addresses = addresses.unwrap_or_default();
                if addresses.len() > MOST_LOOKUPDS {
                    return Err(invalid());
                }
                tracing::info!(?addresses, "nsqlookupd addresses changed");
                self.live.lookupd_addresses.send_replace(addresses);
            }
            "log_level" => {
                let level = std::str::from_utf8(value).ok().and_then(|text| LogLevel::from_text(text).ok());
                let level = level.ok_or_else(invalid)?;
                tracing::info!(level = level.as_str(), "log level changed");
                self.live.log_level.send_replace(level);
            }
            _ => return Err(Refusal::bad("INVALID_OPTION")),
        }
        Ok(())
    }

    fn value_of(&self, option: &str) -> Option<Value> {
        match option {
            "nsqlookupd_tcp_addresses" => Some(Value::from(self.live.lookupd_addresses.borrow().clone())),
            // nsqd's levels start at 1.
            "log_level" => Some(Value::from(*self.live.log_level.borrow() as u8 + 1)),
            _ => self.config.nsqd_value(option),
        }
    }
}
