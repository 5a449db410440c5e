//! The corpus of strange requests through a whole proxy, in front of an upstream that remembers every byte.
#![cfg(feature = "io")]
#![expect(clippy::unwrap_used, reason = "a test")]

use tidegate_load::attack::Loopback;
use tidegate_load::attack::smuggling::{Conduct, Recorder, corpus, differential};
use tidegate_proxy::config::Config;
use tidegate_proxy::io::Proxy;
use tidegate_runtime::config::Document;

/// Heads as long as the corpus's own limits have it.
fn start(upstream: &str) -> Proxy {
    let text = format!(
        r#"
[proxy]
threads = 1
[[proxy.listen]]
address = "127.0.0.1:0"
[[proxy.upstream]]
name = "recorder"
servers = ["{upstream}"]
[[proxy.route]]
upstream = "recorder"
[proxy.http]
max_head = "8KiB"
"#
    );
    Proxy::start(Config::from_document(&Document::new("tidegate.toml", text.as_str()), 1).unwrap()).unwrap()
}

#[test]
fn no_case_of_the_corpus_reaches_an_upstream_as_something_else() {
    let recorder = Recorder::start("127.0.0.1:0".parse().unwrap()).unwrap();
    let proxy = start(&recorder.address().to_string());
    let target = Loopback::new(proxy.addresses()[0]).unwrap();
    let report = differential(target, &recorder, &corpus(), "a.example").unwrap();
    assert!(report.cases >= 200, "{}", report.cases);
    let bad: Vec<_> = report
        .reports
        .iter()
        .filter(|case| case.desync.is_some() || case.unclean.is_some() || case.conduct == Conduct::Laxer)
        .collect();
    assert!(bad.is_empty(), "{bad:#?}");
    // What is stricter than the corpus has a reason in the proxy's own rules; most cases are the same.
    assert!(report.stricter + report.waits <= report.cases / 20, "{} and {}", report.stricter, report.waits);
}
