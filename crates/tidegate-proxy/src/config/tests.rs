use std::time::Duration;

use tidegate_runtime::config::{ConfigError, Document};

use super::*;
use crate::machine::Resource;
use crate::machine::sampling::Always;

const BASE: &str = "[[proxy.listen]]\naddress = \"127.0.0.1:8080\"\n[[proxy.upstream]]\nname = \"shop\"\nservers = \
                    [\"127.0.0.1:9000\"]\n[[proxy.route]]\nupstream = \"shop\"\n";

fn read(text: &str) -> Result<Config, ConfigError> {
    Config::from_document(&Document::new("t.toml", text), 2)
}

fn error(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

#[test]
fn an_address_an_upstream_and_a_route_are_enough() {
    let config = read(BASE).unwrap();
    assert_eq!((config.threads, config.overflow_threads), (2, 2));
    assert!(config.admin.is_some_and(|admin| admin.ip().is_loopback()));
    assert_eq!(config.limits.mode, Mode::Restrict);
    let unlimited = Resource::ALL.iter().filter(|one| config.limits.capacities[one.index()] == Amount::Unlimited);
    assert!(
        unlimited.eq(&[Resource::NetworkBytes, Resource::DiskBytes]),
        "nobody can learn how much of these there is"
    );
    assert_eq!(config.tenants.by, TenantBy::Sni);
    assert_eq!(config.routes[0].name, "*/");
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
}

#[test]
fn without_a_word_only_this_machine_can_connect() {
    let config = read("").unwrap();
    assert!(config.listeners.iter().all(|listener| listener.address.ip().is_loopback()));
    assert_eq!(config.warnings.len(), 1, "it has no route");
}

#[test]
fn capacities_are_written_in_the_units_of_their_resources() {
    let config = read(
        "[proxy.limits.capacities]\nhandshakes = \"2560/s\"\nconnections = 10000\nnetwork_bytes = \"100MB/s\"\n\
         event_time = 0.5\nmemory = \"512MiB\"\ndisk_bytes = 1000\nrequests = \"learnt\"\n",
    )
    .unwrap();
    let of = |resource: Resource| config.limits.capacities[resource.index()];
    assert_eq!(of(Resource::Handshakes), Amount::Fixed(2_560));
    assert_eq!(of(Resource::Connections), Amount::Fixed(10_000));
    assert_eq!(of(Resource::NetworkBytes), Amount::Fixed(100_000_000));
    assert_eq!(of(Resource::DiskBytes), Amount::Fixed(1_000));
    assert_eq!(of(Resource::EventTime), Amount::Fixed(500_000_000));
    assert_eq!(of(Resource::Memory), Amount::Fixed(512 << 20));
    assert_eq!(of(Resource::Requests), Amount::Learnt);
    for (wrong, word) in [
        ("memory = \"much\"", "learnt"),
        ("event_time = \"1/s\"", "learnt"),
        ("handshakes = 0", "learnt"),
        ("requests = \"unlimited\"", "learnt"),
        ("network_bytes = \"100MB\"", "unlimited"),
        ("disk_bytes = \"learnt\"", "unlimited"),
    ] {
        let error = error(&format!("[proxy.limits.capacities]\n{wrong}\n"));
        let expected = format!("expected \"{word}\"");
        assert!(error.starts_with("t.toml:2: proxy.limits.capacities.") && error.contains(&expected), "{error}");
    }
}

#[test]
fn a_rate_limit_has_every_option_of_the_plugin() {
    let text = format!(
        "{BASE}[proxy.route.rate_limit]\nlimit = 10\nrate = \"100/s\"\nqueue = 5\nmax_age = \"3s\"\nerror = 503\n\
         retry = \"2s\"\nheader = \"@delay\"\nconnections = true\nprefix = \"p\"\ntag = \"t\"\nallow = [\"office\"]\n\
         deny = [\"bad\"]\n[proxy.lists.office]\ncidr = [\"10.0.0.0/8\"]\n[proxy.lists.bad]\ncidr = []\n"
    );
    // `@` begins ATS's internal headers; here a header's name is one of HTTP's.
    assert!(error(&text).contains("route[0].rate_limit.header: found \"@delay\""));
    let config = read(&text.replace("@delay", "X-Delay")).unwrap();
    let limit = config.routes[0].rate_limit.as_ref().unwrap();
    assert_eq!((limit.limit, limit.burst, limit.queue, limit.error.as_u16()), (Some(10), 100, 5, 503));
    assert_eq!((limit.max_age, limit.retry), (Some(Duration::from_secs(3)), Some(Duration::from_secs(2))));
    assert_eq!(limit.header.as_ref().unwrap(), "x-delay");
    assert!(limit.connections);
}

/// Files with a mistake, and what is said about it.
const MISTAKES: &[(&str, &str)] = &[
    ("[proxy]\nthreds = 2\n", "t.toml:2: proxy.threds: unknown key; did you mean `threads`?"),
    ("[proxy]\nthreads = 0\n", "t.toml:2: proxy.threads: found 0; expected a number from 1 to 256"),
    (
        "[[proxy.listen]]\naddress = \"8080\"\n",
        "t.toml:2: proxy.listen[0].address: found \"8080\"; expected address:port such as \"127.0.0.1:8080\", \
             \"0.0.0.0:443\" or \"[::]:443\"",
    ),
    (
        "[[proxy.listen]]\ntls = true\n",
        "t.toml:2: proxy.listen[0].tls: TLS without a certificate; add [[proxy.certificate]] with cert and key, or \
             leave tls out",
    ),
    (
        "[[proxy.listen]]\nproxy_protocol = \"maybe\"\n",
        "t.toml:2: proxy.listen[0].proxy_protocol: unknown variant `maybe`; expected one of `off`, `accept`, `require`",
    ),
    (
        "[[proxy.upstream]]\nname = \"shop\"\nservers = [\"127.0.0.1\"]\n",
        "t.toml:3: proxy.upstream[0].servers[0]: found \"127.0.0.1\"; expected host:port such as \
             \"127.0.0.1:9000\", \"shop.internal:80\" or \"[::1]:9000\"",
    ),
    (
        "[[proxy.upstream]]\nname = \"shop\"\nservers = [\"a:1\"]\nweights = { \"a:2\" = 3 }\n",
        "t.toml:4: proxy.upstream[0].weights: there is no server \"a:2\"; did you mean \"a:1\"?",
    ),
    (
        "[[proxy.upstream]]\nname = \"shop\"\nservers = [\"a:1\", \"10.0.0.1:1\"]\ntls = {}\n",
        "t.toml:4: proxy.upstream[0].tls.name: there is none, and 10.0.0.1:1 is an address; add the name that the \
             servers' certificates are for, such as name = \"service.internal\"",
    ),
    (
        "[[proxy.upstream]]\nname = \"shop\"\nservers = [\"a:1\"]\ntls = { cert = \"c.pem\" }\n",
        "t.toml:4: proxy.upstream[0].tls.cert: found it without key; add key, the PEM file that goes with it",
    ),
    (
        "[[proxy.upstream]]\nname = \"shop\"\nservers = [\"a:1\"]\ntls = { roots = \"system\", verify = false }\n",
        "t.toml:4: proxy.upstream[0].tls.verify: found false beside roots; leave one of them out: without verification \
             no roots are needed",
    ),
    (
        "[[proxy.upstream]]\nname = \"shop\"\nservers = [\"a:1\"]\nprotocol = \"http2\"\n",
        "t.toml:4: proxy.upstream[0].protocol: found \"http2\" without tls; add tls = {}, or write \"h2c\" for HTTP/2 \
             without TLS",
    ),
    (
        "[[proxy.upstream]]\nname = \"shop\"\nservers = [\"a:1\"]\nprotocol = \"h2c\"\ntls = {}\n",
        "t.toml:4: proxy.upstream[0].protocol: found \"h2c\" with tls; write \"http2\" for HTTP/2 over TLS, or leave \
             tls out",
    ),
    (
        "[[proxy.upstream]]\nname = \"shop\"\nservers = [\"a:1\"]\n[[proxy.route]]\nupstream = \"shpo\"\n",
        "t.toml:5: proxy.route[0].upstream: there is no upstream \"shpo\"; did you mean \"shop\"?",
    ),
    (
        "[[proxy.route]]\nupstream = \"shop\"\nhost = \"https://shop.example\"\n",
        "t.toml:3: proxy.route[0].host: found \"https://shop.example\"; expected a host name without scheme and port, \
             such as \"shop.example.com\" or \"*.example.com\"",
    ),
    (
        "[proxy]\ntrusted = [\"10.0.0.0/40\"]\n",
        "t.toml:2: proxy.trusted[0]: invalid value: string \"10.0.0.0/40\"; expected an address such as \
             \"192.0.2.7\" or a range such as \"10.0.0.0/8\"",
    ),
    (
        "[proxy.tenants]\nby = \"cookie\"\n",
        "t.toml:2: proxy.tenants.by: invalid value: string \"cookie\"; expected \"sni\", \"host\", \"route\" or \
             \"header:\" with a header's name",
    ),
    (
        "[proxy.limits]\nnewcomers = 0.2\n",
        "t.toml:2: proxy.limits.newcomers: found 0.2; expected a number from 0 to 0.05",
    ),
    (
        "[[proxy.upstream]]\nname = \"u\"\nservers = [\"a:1\"]\n[[proxy.route]]\nupstream = \"u\"\npath = \"//%6cogin\"\n",
        "t.toml:6: proxy.route[0].path: found \"//%6cogin\"; write it as \"/login\": the paths of requests are compared \
             in that form",
    ),
    (
        "[proxy.http]\nmax_headers = 257\n",
        "t.toml:2: proxy.http.max_headers: found 257; expected a number from 8 to 256",
    ),
    ("[proxy.limits]\nreserve = 1.5\n", "t.toml:2: proxy.limits.reserve: found 1.5; expected a number from 0 to 0.9"),
    (
        "[proxy.timeouts]\nheader = 10\n",
        "t.toml:2: proxy.timeouts.header: invalid type: integer `10`; expected a duration such as \"250ms\", \
             \"10s\" or \"1m30s\"",
    ),
    (
        "[[proxy.upstream]]\nname = \"u\"\nservers = [\"a:1\"]\nfailure_statuses = [503, 429]\n",
        "t.toml:4: proxy.upstream[0].failure_statuses[1]: found 429; expected statuses of a server that failed, such as \
         [502, 503, 504]: from 500 to 599 without 501, 505 and 511, which are up to the request",
    ),
    (
        "[[proxy.upstream]]\nname = \"u\"\nservers = [\"a:1\"]\nhealth = { statuses = [\"200-99\"] }\n",
        "t.toml:4: proxy.upstream[0].health.statuses[0]: invalid value: string \"200-99\"; expected a status from 200 to \
         599 such as 204, or a range of them such as \"200-399\"",
    ),
    (
        "[[proxy.upstream]]\nname = \"u\"\nservers = [\"a:1\"]\nhealth = { host = \"https://shop.example\" }\n",
        "t.toml:4: proxy.upstream[0].health.host: found \"https://shop.example\"; expected a host, with a port if the \
         servers want one: \"shop.example.com\"",
    ),
    (
        "[[proxy.upstream]]\nname = \"u\"\nservers = [\"a:1\"]\nretries = { statuses = [503, 503] }\n",
        "t.toml:4: proxy.upstream[0].retries.statuses[1]: 503 is there twice; keep one of them",
    ),
    (
        "[proxy]\nname_servers = [\"10.0.0.2\", \"dns\"]\n",
        "t.toml:2: proxy.name_servers[1]: found \"dns\"; expected an address such as \"10.0.0.2\", \"127.0.0.1:8600\" or \
         \"[::1]:53\"",
    ),
    (
        "[[proxy.upstream]]\nname = \"u\"\nservers = [\"a:1\"]\nresolve = \"10m\"\n",
        "t.toml:4: proxy.upstream[0].resolve: invalid value: string \"10m\"; expected \"ttl\", \"off\" or a duration from \
         1s to 5m such as \"30s\"",
    ),
    (
        "[[proxy.upstream]]\nname = \"u\"\nservers = [\"a:1\"]\nbalance = \"hash\"\n",
        "t.toml:4: proxy.upstream[0].balance: found \"hash\" without hash_by; add hash_by = \"source\", \"host\", \
         \"path\" or \"header:NAME\"",
    ),
    (
        "[[proxy.upstream]]\nname = \"u\"\nservers = [\"a:1\"]\nhash_by = \"path\"\n",
        "t.toml:4: proxy.upstream[0].hash_by: found \"path\" without balance = \"hash\"; add it, or leave hash_by out",
    ),
    (
        "[[proxy.tenant]]\nname = \"a\"\n[[proxy.tenant]]\nname = \"a\"\n",
        "t.toml:4: proxy.tenant[1].name: a is there twice; keep one; `match` takes all names that it is known by",
    ),
    (
        "[[proxy.sni]]\nnames = [\"a.example\"]\nrate_limit = { limit = 1, error = 503 }\n",
        "t.toml:3: proxy.sni[0].rate_limit.error: the limit is of a name in the ClientHello; leave it out: connections are \
         counted and closed; a route's limit can have it",
    ),
    (
        "[[proxy.sni]]\nnames = [\"*.a.example\"]\nrate_limit = { limit = 1 }\n",
        "t.toml:2: proxy.sni[0].names: found \"*.a.example\"; write each name out; default = true is for all names without \
         a rule",
    ),
    (
        "[[proxy.sni]]\nnames = [\"a.example\"]\n[proxy.sni.rate_limit]\nallow = [\"office\"]\n",
        "t.toml:3: proxy.sni[0].rate_limit.limit: there is nothing to limit; add limit (how many at once), rate (how \
             many each second), or deny (lists of addresses)",
    ),
    (
        "[proxy.access_log]\npath = \"\"\n",
        "t.toml:2: proxy.access_log.path: found \"\"; expected a file or \"stdout\"; without [proxy.access_log] \
             nothing is written",
    ),
];

#[test]
fn errors_name_file_line_key_value_and_remedy() {
    for (text, said) in MISTAKES {
        assert_eq!(error(text), *said);
    }
}

/// The keys of the sections, as the source declares them.
fn keys() -> Vec<&'static str> {
    let source = include_str!("section.rs");
    let field = |line: &'static str| line.trim().strip_prefix("pub(super) ")?.split_once(':').map(|(name, _)| name);
    let renamed = |name| if name == "matches" { "match" } else { name };
    source.lines().filter_map(field).map(renamed).collect()
}

#[test]
fn every_key_is_in_the_book_and_in_the_example() {
    let book = include_str!("../../../../docs/src/reference/proxy.md");
    let example = include_str!("../../../../tidegate.example.toml");
    let keys = keys();
    assert!(keys.len() > 80, "the source's keys were not found");
    for key in keys {
        // As a key of its own, of a section below, or as a section.
        let named = [format!("`{key}`"), format!(".{key}`"), format!("] {key}`"), format!("proxy.{key}")];
        assert!(named.iter().any(|name| book.contains(name)), "docs/src/reference/proxy.md has no {key}");
        let named = [format!("{key} = "), format!("[proxy.{key}"), format!(".{key}]"), format!("[[proxy.{key}]]")];
        assert!(named.iter().any(|name| example.contains(name)), "tidegate.example.toml has no {key}");
    }
}

#[test]
fn what_threads_cannot_divide_is_said() {
    let threads = format!("{BASE}[proxy]\nthreads = 4\n");
    let base = threads.replace("servers =", "max_connections = 3\nmax_streams = 2\nqueue = 4\nservers =");
    let config = read(&base).unwrap();
    assert_eq!(config.warnings.len(), 2, "four threads have one each in the queue: {:?}", config.warnings);
    assert!(config.warnings[0].starts_with("max_connections of upstream shop is 3, but each of 4 threads has one"));
    assert!(config.warnings[1].starts_with("max_streams of upstream shop is 2, but each of 4 threads has one"));
    let none = threads.replace("servers =", "max_connections = 4\nqueue = 0\nservers =");
    assert!(read(&none).unwrap().warnings.is_empty());
}

#[test]
fn what_has_a_line_in_the_access_log_is_chosen() {
    let sampling = |table: &str| {
        let config = read(&format!("{BASE}[proxy.access_log]\npath = \"stdout\"\n{table}\n")).unwrap();
        config.access_log.unwrap().sampling
    };
    let usual = sampling("");
    assert!(usual.sample >= 1.0 && usual.always.server_errors && usual.always.traced && !usual.always.refused);
    let few = sampling("sample = 0.01\nalways = [\"refused\"]");
    assert!((few.sample - 0.01).abs() < 1e-12 && few.always.refused && !few.always.server_errors);
    assert_eq!(sampling("always = []").always, Always::default());
    for wrong in ["sample = 1.5", "sample = -0.1", "sample = nan"] {
        let error = error(&format!("[proxy.access_log]\npath = \"stdout\"\n{wrong}\n"));
        assert!(error.starts_with("t.toml:3: proxy.access_log.sample: found "), "{error}");
        assert!(error.ends_with("expected a number from 0 to 1"), "{error}");
    }
    let unknown = error("[proxy.access_log]\npath = \"stdout\"\nalways = [\"4xx\"]\n");
    assert!(unknown.contains("unknown variant `4xx`; expected one of `5xx`, `refused`, `traced`"), "{unknown}");
}

#[test]
fn framing_is_nobodys_to_edit() {
    for header in ["Connection", "Transfer-Encoding", "content-length", "Keep-Alive"] {
        let edits = format!("{BASE}remove_request_headers = [\"{header}\"]\n");
        assert!(error(&edits).contains("the proxy frames messages itself"), "{header}");
        let edits = format!("{BASE}set_response_headers = {{ \"{header}\" = \"x\" }}\n");
        assert!(error(&edits).contains("the proxy frames messages itself"), "{header}");
    }
    let edits = format!("{BASE}set_request_headers = {{ X-A = \"a\\nb\" }}\n");
    assert!(error(&edits).contains("set_request_headers.X-A: found \"a\\nb\""), "{}", error(&edits));
}

#[test]
fn two_routes_for_the_same_requests_are_one_too_many() {
    let twice = format!("{BASE}[[proxy.route]]\nname = \"again\"\nupstream = \"shop\"\n");
    assert!(error(&twice).contains("the same requests already go to route */"), "{}", error(&twice));
    let other = format!("{BASE}[[proxy.route]]\nname = \"again\"\nupstream = \"shop\"\nmethods = [\"GET\"]\n");
    assert_eq!(read(&other).unwrap().routes.len(), 2);
}

#[test]
fn what_is_probably_not_meant_is_said() {
    let warned = |text: &str| read(&format!("{BASE}{text}")).unwrap().warnings.join("; ");
    assert!(warned("[proxy]\ntrusted = [\"0.0.0.0/0\"]\n").contains("any client can say"));
    assert!(warned("[proxy]\nadmin_address = \"0.0.0.0:4154\"\n").contains("other machines may reach"));
    let memory = warned("[proxy.limits.capacities]\nmemory = \"64GiB\"\n");
    assert!(memory.contains("capacities.memory is more than can be counted: in force is 8000000000"), "{memory}");
    assert!(
        warned("[[proxy.listen]]\naddress = \"127.0.0.1:1\"\nproxy_protocol = \"accept\"\n")
            .contains("proxy.trusted is")
    );
    assert!(warned("[[proxy.upstream]]\nname = \"idle\"\nservers = [\"a:1\"]\n").contains("no route leads to"));
    let unverified =
        warned("[[proxy.upstream]]\nname = \"any\"\nservers = [\"1.2.3.4:1\"]\ntls = { verify = false }\n");
    assert!(unverified.contains("tls.verify of upstream any is false"), "{unverified}");
}

#[test]
fn a_header_that_tells_tenants_apart_says_whom_it_is_believed_from() {
    let error_of = |table: &str| error(&format!("[proxy.tenants]\n{table}\n"));
    let without = error_of("by = \"header:X-Plan\"");
    assert!(
        without.starts_with("t.toml:2: proxy.tenants.by: found \"header:x-plan\" without header_from"),
        "{without}"
    );
    assert!(without.contains("header_from = [\"10.0.0.0/8\"]"), "{without}");
    let useless = error_of("by = \"host\"\nheader_from = [\"10.0.0.0/8\"]");
    assert!(useless.starts_with("t.toml:3: proxy.tenants.header_from"), "{useless}");
    assert!(read("[proxy.tenants]\nby = \"header:x-plan\"\nheader_from = [\"::/0\"]\n").is_ok());
}

#[test]
fn what_of_tls_is_spoken_has_names_that_the_provider_knows() {
    let listen = |keys: &str| {
        format!("[[proxy.certificate]]\ncert = \"c\"\nkey = \"k\"\n[[proxy.listen]]\ntls = true\n{keys}\n")
    };
    let policy = |keys: &str| read(&listen(keys)).unwrap().listeners[0].tls_policy.clone();
    assert_eq!(policy(""), TlsPolicy::default());
    assert_eq!(policy("tls_version_min = \"1.3\"").versions(), [&rustls::version::TLS13]);
    let both = "ciphers = [\"tls_aes_128_gcm_sha256\", \"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256\"]";
    let spoken: Vec<_> =
        policy(both).provider().cipher_suites.iter().map(rustls::SupportedCipherSuite::suite).collect();
    let wanted =
        [rustls::CipherSuite::TLS13_AES_128_GCM_SHA256, rustls::CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256];
    assert_eq!(spoken, wanted);
    let groups = policy("key_exchange = [\"x25519\", \"X25519MLKEM768\"]").provider().kx_groups;
    assert_eq!(groups.len(), 2);
    for (keys, problem) in [
        ("tls_version_min = \"1.1\"", "`1.1`"),
        ("ciphers = [\"TLS_RSA_WITH_AES_128_CBC_SHA\"]", "expected some of TLS_AES_256_GCM_SHA384, "),
        ("ciphers = []", "the list is empty"),
        ("ciphers = [\"TLS_AES_128_GCM_SHA256\"]", "found none for TLS 1.2"),
        (&format!("tls_version_min = \"1.3\"\n{both}"), "is of TLS 1.2, which is not spoken"),
        ("key_exchange = [\"ffdhe2048\"]", "expected some of X25519, secp256r1, secp384r1, X25519MLKEM768"),
        ("key_exchange = [\"X25519MLKEM768\"]", "found none for TLS 1.2"),
        ("key_exchange = [\"X25519\", \"x25519\"]", "X25519 is there twice"),
    ] {
        let error = error(&listen(keys));
        assert!(error.contains(problem), "{keys}: {error}");
    }
    let plain = error("[[proxy.listen]]\ntls_version_min = \"1.3\"\n");
    assert!(plain.contains("found it without TLS"), "{plain}");
}
