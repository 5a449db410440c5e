//! `status`, `set` and `top`: they ask a running agent.

use std::io::IsTerminal;
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use super::shown::Shown;
use super::{Reading, SetArgs, TopArgs};
use crate::admin_client::{AdminClient, Of, load_token};
use crate::failure::Failure;
use crate::output;

const PATH: &str = "/api/v1/shaper";
/// From one screen to the next: the agent reads once a second.
const PERIOD: Duration = Duration::from_secs(1);
/// Clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(super) fn status(reading: &Reading) -> Result<(), Failure> {
    let answer = client(reading)?.ask(Method::GET, PATH, None)?;
    if reading.json {
        return output::json(&answer);
    }
    output::line(Shown::of(answer)?.text().trim_end())
}

pub(super) fn top(args: &TopArgs) -> Result<(), Failure> {
    let client = client(&args.reading)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new("cannot start").because(error))?;
    let clears = std::io::stdout().is_terminal() && !args.once && !args.reading.json;
    loop {
        let answer = client.ask(Method::GET, PATH, None)?;
        if args.reading.json {
            // One document in a line, for programs that read as it goes.
            output::line(&answer)?;
        } else {
            let text = Shown::of(answer)?.text();
            output::line(format_args!("{}{}", if clears { CLEAR } else { "" }, text.trim_end()))?;
        }
        if args.once {
            return Ok(());
        }
        runtime.block_on(tokio::time::sleep(PERIOD));
    }
}

pub(super) fn set(args: &SetArgs) -> Result<(), Failure> {
    let token = load_token(&args.token_file, Of::Shaper)?;
    let client = AdminClient { of: Of::Shaper, address: args.admin.clone(), token: Some(token) };
    let shown = Shown::of(client.ask(Method::GET, PATH, None)?)?;
    let (device, class) = find(&shown, &args.class)?;
    let path = format!("{PATH}/classes/{}/{}", segment(device), segment(class));
    let answer = client.ask(Method::PUT, &path, Some(&body(args)))?;
    if args.json {
        return output::json(&answer);
    }
    let of = |key: &str| answer["class"][key].as_str().unwrap_or("-").to_owned();
    output::line(format_args!("{device}/{class}: rate {}, ceil {}", of("rate"), of("ceil")))
}

fn body(args: &SetArgs) -> Value {
    match args.ceil {
        Some(ceil) => json!({ "rate": args.rate, "ceil": ceil }),
        None => json!({ "rate": args.rate }),
    }
}

/// The device and class of `class` or `device/class`.
fn find<'a>(shown: &'a Shown, wanted: &str) -> Result<(&'a str, &'a str), Failure> {
    let all = shown.devices.iter().flat_map(|device| device.classes.iter().map(|class| (&*device.id, &*class.name)));
    let found: Vec<_> =
        all.filter(|(device, class)| *class == wanted || format!("{device}/{class}") == wanted).collect();
    match found[..] {
        [one] => Ok(one),
        [] => Err(Failure::usage(format!("there is no class `{wanted}`"))
            .help("`tidegate shaper status` lists devices and classes")),
        [(device, class), ..] => Err(Failure::usage(format!("{} devices have a class `{wanted}`", found.len()))
            .help(format_args!("name the device too, such as {device}/{class}"))),
    }
}

/// As it stands in a path: a device's name may hold a namespace's.
fn segment(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn client(reading: &Reading) -> Result<AdminClient, Failure> {
    let token = reading.token.load(Of::Shaper)?;
    Ok(AdminClient { of: Of::Shaper, address: reading.admin.clone(), token })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_found_by_its_name_where_that_is_enough() {
        let class = |name: &str| json!({ "name": name, "classid": "71de:20" });
        let device = |id: &str, classes: Value| {
            json!({
                "id": id, "mode": "own", "state": "shaped", "control": "off", "isolation": false, "classes": classes,
            })
        };
        let devices =
            [device("eth0", json!([class("a"), class("b")])), device("eth1@/run/netns/x", json!([class("b")]))];
        let shown = Shown::of(json!({ "devices": devices })).unwrap();
        assert_eq!(find(&shown, "a").unwrap(), ("eth0", "a"));
        assert_eq!(find(&shown, "eth0/b").unwrap(), ("eth0", "b"));
        assert!(find(&shown, "b").unwrap_err().to_string().contains("2 devices have a class"));
        assert!(find(&shown, "c").is_err());
        assert_eq!(segment("eth1@/run/netns/x"), "eth1%40%2Frun%2Fnetns%2Fx");
    }
}
