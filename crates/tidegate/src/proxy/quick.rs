//! A configuration from a few flags. It is written as a file would be, so that there is one way to read it.

use std::fmt::Write as _;
use std::path::Path;

use tidegate_runtime::config::Document;

use super::ProxyArgs;

/// The file that says what the flags say.
pub(super) fn document(args: &ProxyArgs) -> Document {
    Document::new("(flags)", text(args))
}

fn text(args: &ProxyArgs) -> String {
    let mut text = String::new();
    let mut put = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("writing to a string does not fail");
    if let Some(admin) = &args.admin {
        put(format_args!("[proxy]\nadmin_address = {}", quoted(admin)));
    }
    let tls = args.cert.is_some();
    for address in &args.listen {
        put(format_args!("[[proxy.listen]]\naddress = {}\ntls = {tls}", quoted(address)));
    }
    if args.listen.is_empty() {
        put(format_args!("[[proxy.listen]]\ntls = {tls}"));
    }
    if let (Some(cert), Some(key)) = (&args.cert, &args.key) {
        put(format_args!("[[proxy.certificate]]\ncert = {}\nkey = {}", path(cert), path(key)));
    }
    let servers: Vec<String> = args.upstream.iter().map(|server| quoted(server)).collect();
    put(format_args!("[[proxy.upstream]]\nname = \"upstream\"\nservers = [{}]", servers.join(", ")));
    put(format_args!("[[proxy.route]]\nname = \"all\"\nupstream = \"upstream\""));
    text
}

fn path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

/// As a basic string of TOML, whose escapes are JSON's.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use tidegate_proxy::config::Config;

    use super::*;

    fn args(upstream: &[&str]) -> ProxyArgs {
        ProxyArgs {
            take_over: None,
            config: None,
            listen: vec!["127.0.0.1:0".to_owned()],
            upstream: upstream.iter().map(|&text| text.to_owned()).collect(),
            cert: None,
            key: None,
            admin: Some(String::new()),
            console: None,
            log: "info".to_owned(),
        }
    }

    #[test]
    fn flags_make_a_configuration_like_any_other() {
        let config = Config::from_document(&document(&args(&["127.0.0.1:9000", "a.example:80"])), 1).unwrap();
        assert_eq!(config.upstreams[0].servers.len(), 2);
        assert_eq!((config.admin, config.listeners[0].tls), (None, false));
        let tls = ProxyArgs { cert: Some("c\"\\.pem".into()), key: Some("k.pem".into()), ..args(&["a:1"]) };
        let config = Config::from_document(&document(&tls), 1).unwrap();
        assert!(config.listeners[0].tls);
        assert_eq!(config.certificates[0].cert, Path::new("c\"\\.pem"));
    }

    #[test]
    fn what_is_wrong_with_a_flag_is_said_as_of_a_file() {
        let error = Config::from_document(&document(&args(&["nonsense"])), 1).unwrap_err().to_string();
        assert!(error.starts_with("(flags):") && error.contains("found \"nonsense\""), "{error}");
    }
}
