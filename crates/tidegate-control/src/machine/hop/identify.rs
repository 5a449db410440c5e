//! What a producer says of itself, and what brokers are told of it.

use std::time::Duration;

use serde_json::{Map, Value};
use tidegate_wire::nsq::client;

/// Half of nsqd's client time-out.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// What producers may ask for, ms: nsqd's bounds with its default for the upper one.
const HEARTBEAT_MS: std::ops::RangeInclusive<i64> = 1_000..=60_000;

/// The fields of an IDENTIFY.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Hello {
    fields: Map<String, Value>,
    /// How often the producer is sent a heartbeat; `None` if it wants none.
    pub(super) heartbeat: Option<Duration>,
    /// What the connection is called, before it is numbered.
    pub(super) base: String,
}

impl Hello {
    /// Of a producer at `peer` that said nothing of itself.
    pub(super) fn plain(peer: &str) -> Self {
        let mut fields = Map::new();
        for key in ["client_id", "hostname"] {
            fields.insert(key.to_owned(), Value::from(peer));
        }
        fields.insert("user_agent".to_owned(), Value::from("tidegate-steer"));
        Self { fields, heartbeat: Some(HEARTBEAT), base: format!("{peer}@{peer}") }
    }

    /// Reads the body of IDENTIFY from a producer at `peer`. A null counts as absent, as it does for nsqd.
    ///
    /// # Errors
    /// The text of the error that ends the connection.
    pub(super) fn read(body: &[u8], peer: &str) -> Result<Self, String> {
        let bad = || "E_BAD_BODY IDENTIFY failed to decode JSON body".to_owned();
        let fields: Map<String, Value> = serde_json::from_slice(body).map_err(|_| bad())?;
        let text = |key: &str| match fields.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
            Some(_) => Err(bad()),
        };
        let interval = match fields.get("heartbeat_interval") {
            None | Some(Value::Null) => 0,
            Some(value) => value.as_i64().ok_or_else(bad)?,
        };
        let heartbeat = match interval {
            0 => Some(HEARTBEAT),
            -1 => None,
            ms if HEARTBEAT_MS.contains(&ms) => Some(Duration::from_millis(ms.unsigned_abs())),
            ms => return Err(format!("E_BAD_BODY IDENTIFY heartbeat interval ({ms}) is invalid")),
        };
        let base = match text("tidegate_publisher")? {
            Some(name) => name.to_owned(),
            None => format!("{}@{}", text("client_id")?.unwrap_or(peer), text("hostname")?.unwrap_or(peer)),
        };
        Ok(Self { fields, heartbeat, base })
    }

    /// What each broker hears first of the connection `identity`: the magic, and the producer's IDENTIFY with its name
    /// added, the hop's own heartbeat, and no layer that would hide the bytes from the hop.
    pub(super) fn forwarded(mut self, identity: &str, heartbeat: Duration) -> Vec<u8> {
        for layer in ["tls_v1", "snappy", "deflate"] {
            self.fields.insert(layer.to_owned(), Value::from(false));
        }
        let ms = u64::try_from(heartbeat.as_millis()).unwrap_or(u64::MAX);
        self.fields.insert("heartbeat_interval".to_owned(), Value::from(ms));
        self.fields.insert("tidegate_publisher".to_owned(), Value::from(identity));
        let mut out = client::MAGIC.to_vec();
        client::put_identify(&mut out, Value::Object(self.fields).to_string().as_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &Value) -> Result<Hello, String> {
        Hello::read(value.to_string().as_bytes(), "10.0.0.1")
    }

    #[test]
    fn a_publisher_is_called_by_what_it_says_or_by_its_address() {
        let base = |value: Value| read(&value).unwrap().base;
        assert_eq!(base(json!({ "client_id": "svc", "hostname": "svc.example" })), "svc@svc.example");
        assert_eq!(base(json!({ "client_id": "svc", "hostname": null })), "svc@10.0.0.1");
        assert_eq!(base(json!({ "client_id": "svc", "tidegate_publisher": "p7" })), "p7");
        assert_eq!(Hello::plain("10.0.0.1").base, "10.0.0.1@10.0.0.1");
    }

    #[test]
    fn heartbeats_have_nsqds_bounds() {
        let heartbeat = |ms: i64| read(&json!({ "heartbeat_interval": ms })).map(|hello| hello.heartbeat);
        assert_eq!(heartbeat(0), Ok(Some(HEARTBEAT)));
        assert_eq!(heartbeat(-1), Ok(None));
        assert_eq!(heartbeat(1_000), Ok(Some(Duration::from_secs(1))));
        assert_eq!(heartbeat(999), Err("E_BAD_BODY IDENTIFY heartbeat interval (999) is invalid".to_owned()));
        assert!(heartbeat(60_001).is_err());
    }

    #[test]
    fn what_is_no_object_of_texts_is_refused() {
        for body in [&b"[]"[..], b"{", br#"{"client_id":7}"#, br#"{"heartbeat_interval":"1s"}"#] {
            assert!(Hello::read(body, "x").unwrap_err().starts_with("E_BAD_BODY IDENTIFY failed to decode"));
        }
    }

    #[test]
    fn brokers_hear_the_name_and_no_layers() {
        let asked = json!({ "client_id": "svc", "tls_v1": true, "snappy": true, "msg_timeout": 5000, "own": [1] });
        let bytes = read(&asked).unwrap().forwarded("svc@h#2", Duration::from_secs(10));
        let start = "  V2IDENTIFY\n".len() + 4;
        let said: Value = serde_json::from_slice(&bytes[start..]).unwrap();
        let wanted = json!({
            "client_id": "svc", "tls_v1": false, "snappy": false, "deflate": false, "msg_timeout": 5000, "own": [1],
            "heartbeat_interval": 10_000, "tidegate_publisher": "svc@h#2",
        });
        assert_eq!(said, wanted);
    }
}
