//! What users see: help, errors with their remedies, exit codes, answers as JSON.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A folder of this test's own, gone when it ends.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-cli-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("the temporary folder is writable");
        Self(path)
    }

    fn tidegate(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(args).current_dir(&self.0).env_clear().env("NO_COLOR", "1");
        command.output().expect("the binary starts")
    }

    fn check(&self, file: &str) -> (i32, String) {
        fs::write(self.0.join("tidegate.toml"), file).expect("the folder is writable");
        let output = self.tidegate(&["check", "tidegate.toml"]);
        (output.status.code().unwrap_or(-1), text(&output.stderr))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_first_screen_says_where_to_begin() {
    let folder = Folder::new("first");
    let output = folder.tidegate(&[]);
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(text(&output.stdout));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn each_verb_explains_itself() {
    let folder = Folder::new("help");
    for verb in [
        &["up"][..],
        &["demo"],
        &["check"],
        &["limits", "set"],
        &["status"],
        &["proxy"],
        &["steer"],
        &["explain"],
        &["completions"],
        &["profile"],
        &["theory", "bucket"],
        &["sim", "bucket"],
        &["sim", "rpc"],
        &["sim", "placement"],
        &["lab", "run"],
        &["shaper"],
        &["shaper", "set"],
    ] {
        let args: Vec<&str> = verb.iter().copied().chain(["--help"]).collect();
        let output = folder.tidegate(&args);
        assert_eq!(output.status.code(), Some(0), "{verb:?}");
        insta::assert_snapshot!(verb.join("_"), text(&output.stdout));
    }
}

#[test]
fn configuration_errors_name_file_line_key_value_and_remedy() {
    let folder = Folder::new("config");
    for (name, file) in [
        ("unknown_key", "[broker]\nmem_queue_sise = 10\n"),
        ("wrong_type", "[broker]\nsnappy = 1\n"),
        ("bad_rate", "[[topic]]\nname = \"orders\"\nrate = \"11k/fortnight\"\nburst = 26\n"),
        ("bad_duration", "[console]\npoll_interval = \"often\"\n"),
        ("out_of_range", "[broker]\n\n# as small as it gets\nmax_deflate_level = 0\n"),
        (
            "two_limits",
            "[[topic]]\nname = \"a\"\nrate = 1\nburst = 1\n\n[[topic]]\nname = \"a\"\nrate = 2\nburst = 2\n",
        ),
        ("no_burst", "[[topic]]\nname = \"a\"\nrate = \"1k/s\"\n"),
        ("not_toml", "[broker\nid = 1\n"),
        ("proxy_unknown_key", "[proxy.limits]\nmodus = \"stats\"\n"),
        ("proxy_listen", "[[proxy.listen]]\naddress = \"8080\"\n"),
        (
            "proxy_upstream",
            "[[proxy.upstream]]\nname = \"shop\"\nservers = [\"127.0.0.1:9000\"]\n\n[[proxy.route]]\nupstream = \"shpo\"\n",
        ),
        (
            "shaper_rate",
            "[[shaper.device]]\nname = \"eth0\"\n\n[[shaper.device.class]]\nname = \"a\"\nrate = \"1 Gb\"\n",
        ),
        ("proxy_tls", "[[proxy.listen]]\naddress = \"127.0.0.1:8443\"\ntls = true\n"),
    ] {
        let (code, report) = folder.check(file);
        assert_eq!(code, 3, "{name}");
        insta::assert_snapshot!(name, report);
    }
    let output = folder.tidegate(&["check", "missing.toml"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("cannot read missing.toml"), "{}", text(&output.stderr));
}

#[test]
fn a_shaper_that_is_not_built_is_refused_at_its_section() {
    let folder = Folder::new("shaper");
    let file = "[console]\naddress = \"\"\n\n[[shaper.device]]\nname = \"eth0\"\n\n[[shaper.device.class]]\nname = \"a\"\nrate = \"1 \
                Gbit/s\"\nmatch = [ { mark = 1 } ]\n";
    assert_eq!(folder.check(file), (0, String::new()), "it is a good file for another binary");
    for verb in [&["shaper"][..], &["shaper", "clear"], &["up"]] {
        if cfg!(feature = "shaper") {
            eprintln!("not run: this binary is built with the feature");
            return;
        }
        let output = folder.tidegate(verb);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{verb:?}: {said}");
        for part in ["tidegate.toml:4: shaper: this tidegate is built without", "--features shaper", "libelf-dev"] {
            assert!(said.contains(part), "{part} in {said}");
        }
    }
    let output = folder.tidegate(&["check", "tidegate.toml"]);
    assert_eq!(text(&output.stdout).contains("warning: [shaper] is not run"), cfg!(not(feature = "shaper")));
}

#[test]
fn a_good_file_is_said_to_be_good_also_to_programs() {
    let folder = Folder::new("good");
    let file = "[[topic]]\nname = \"orders\"\nrate = \"11k/s\"\nburst = 26\n";
    assert_eq!(folder.check(file), (0, String::new()));
    let output = folder.tidegate(&["check", "--json", "tidegate.toml"]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["ok"], true);
    assert_eq!(answer["limits"][0]["rate"], "11k/s");
    assert_eq!(answer["limits"][0]["discipline"], "wait");
}

#[test]
fn files_that_a_proxy_would_not_start_with_are_found_by_check_too() {
    let folder = Folder::new("files");
    let file = "[proxy]\nticket_keys = [\"tickets\"]\n[[proxy.certificate]]\ncert = \"a.pem\"\nkey = \"a.key\"\n";
    // They may be another machine's.
    assert_eq!(folder.check(file), (0, String::new()));
    let said = text(&folder.tidegate(&["check", "tidegate.toml"]).stdout);
    assert!(said.contains("warning: proxy.certificate[0].cert: cannot read a.pem: No such file"), "{said}");
    fs::write(folder.0.join("a.pem"), "nonsense").expect("the folder is writable");
    fs::write(folder.0.join("a.key"), "nonsense").expect("the folder is writable");
    let (code, said) = folder.check(file);
    assert_eq!(code, 3, "{said}");
    assert!(
        said.contains("tidegate.toml:5: proxy.certificate[0].key: cannot read the certificate file a.key"),
        "{said}"
    );
    let without = "[proxy]\nticket_keys = [\"tickets\"]\n";
    fs::write(folder.0.join("tickets"), "short").expect("the folder is writable");
    let (code, said) = folder.check(without);
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("proxy.ticket_keys[0]: cannot use the ticket key tickets: it has 5 bytes"), "{said}");
}

#[test]
fn wrong_usage_is_exit_code_2_with_a_suggestion() {
    let folder = Folder::new("usage");
    for (args, said) in [
        (&["broker", "-mem-quue-size=3"][..], "did you mean -mem-queue-size?"),
        (&["broker", "-sync-every=x"], "\"x\" is not a whole number"),
        (&["broker", "-max-deflate-level=12"], "it must be from 1 to 9"),
        (&["demoo"], "'demo'"),
        (&["limits", "set", "orders", "11k/fortnight", "26"], "fortnight"),
        (&["limits", "set", "a b", "1/s", "1"], "a name is 1 to 64"),
        (&["demo", "--seconds", "5"], "--headless"),
        (&["status", "--admin", "127.0.0.1:99999"], "a port from 1 to 65535"),
        (&["explain", "a.example", "--admin", "4154"], "expected address:port"),
        (&["explain", "/cart"], "write it as shop.example/cart"),
        (&["limits", "set", "orders", "1M/s", "64KiB"], "add --unit bytes"),
        (&["rpc", "serve", "--shards", "0"], "1..=1024"),
    ] {
        let output = folder.tidegate(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(said), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn schemes_of_overload_control_are_simulated_side_by_side() {
    let folder = Folder::new("sim-rpc");
    let plant = ["sim", "rpc", "--cores", "2", "--clients", "50", "--duration", "30ms", "--warm-up", "10ms"];
    let ask = |more: &[&str]| folder.tidegate(&[&plant, more].concat());
    let both = ["--scheme", "breakwater,none", "--load", "2", "--json"];
    let output = ask(&both);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let goodput = |run: usize| answer["runs"][run]["report"]["goodput_of_capacity"].as_f64().unwrap();
    assert_eq!(answer["runs"][0]["scheme"], "breakwater");
    assert!(goodput(0) > 0.5 && goodput(1) < 0.1, "{answer}");
    assert_eq!(ask(&both).stdout, output.stdout);

    let shares = ask(&["--tenants", "1=1,2=9", "--priorities", "0=1,255=1", "--scheme", "tidegate"]);
    let shown = text(&shares.stdout);
    assert!(shown.contains("Jain's index") && shown.contains("priority"), "{shown}{}", text(&shares.stderr));
    let wrong = ask(&["--scheme", "hope"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("tidegate, breakwater"), "{}", text(&wrong.stderr));
}

#[test]
fn a_topic_is_placed_in_virtual_time() {
    let folder = Folder::new("sim-placement");
    let ask = |more: &[&str]| folder.tidegate(&[&["sim", "placement", "--simulate", "1"], more].concat());
    let output = ask(&["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["meets_slo"], &answer["rounds"]), (&true.into(), &serde_json::json!([1])), "{answer}");
    assert_eq!(answer["assignment"][0]["publishers"], 1_000);
    assert_eq!(answer["seconds"], 64.0);
    assert_eq!(ask(&["--json"]).stdout, output.stdout);

    let missed = ask(&["--policy", "lb"]);
    assert_eq!(missed.status.code(), Some(4), "{}", text(&missed.stderr));
    let shown = text(&missed.stdout);
    assert!(shown.contains("broker 6 takes 167 publishers") || shown.contains("broker 6 takes 166"), "{shown}");
    assert!(text(&missed.stderr).contains("beyond its objective"), "{}", text(&missed.stderr));
    let full = ask(&["--preload", "60k/s", "--brokers", "1"]);
    assert_eq!(full.status.code(), Some(4));
    assert!(text(&full.stdout).contains("too little capacity left"), "{}", text(&full.stdout));
    let wrong = ask(&["--policy", "hope"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("max-min"), "{}", text(&wrong.stderr));
}

#[test]
fn theory_and_simulation_answer_the_same_question_alike() {
    let folder = Folder::new("bucket");
    let bucket = ["bucket", "--offered", "9k/s", "--rate", "10k/s", "--burst", "20", "--json"];
    let ask = |verb| -> serde_json::Value {
        let args: Vec<&str> = std::iter::once(verb).chain(bucket).collect();
        let output = folder.tidegate(&args);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let (exact, simulated) = (ask("theory"), ask("sim"));
    let share = |answer: &serde_json::Value| answer["share_delayed"].as_f64().unwrap();
    assert!(share(&exact) > 0.01 && (share(&exact) - share(&simulated)).abs() < 0.01, "{exact} {simulated}");
    assert_eq!(simulated["messages"], 1_000_000);
}

#[test]
fn each_message_of_a_list_gets_its_delay() {
    let folder = Folder::new("list");
    fs::write(folder.0.join("arrivals.txt"), "0 0 0.05 # three\n").unwrap();
    for verb in ["theory", "sim"] {
        let args = [verb, "bucket", "--list", "arrivals.txt", "--rate", "10/s", "--burst", "1", "--json"];
        let output = folder.tidegate(&args);
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let delays: Vec<f64> =
            answer["delays"].as_array().unwrap().iter().map(|row| row["delay_us"].as_f64().unwrap()).collect();
        assert_eq!(delays, [0.0, 100_000.0, 150_000.0], "{verb}");
    }
    let output = folder.tidegate(&["theory", "bucket", "--rate", "1/s", "--burst", "1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--offered"), "{}", text(&output.stderr));
}

#[test]
fn a_trace_becomes_a_limit() {
    let folder = Folder::new("profile");
    // Every millisecond a pair: 2,000 messages per second.
    let rows = (0..2_000).map(|n| format!("{},0,0,0,100", n / 2 * 1_000_000));
    let lines: Vec<String> =
        std::iter::once("arrival_ns,read_ns,release_ns,passed_ns,bytes".to_owned()).chain(rows).collect();
    fs::write(folder.0.join("t.trace"), lines.join("\n")).unwrap();
    let output = folder.tidegate(&["profile", "t.trace", "--json"]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["limit"]["rate"], &answer["limit"]["burst"]), (&"2200/s".into(), &2.into()), "{answer}");
    let output = folder.tidegate(&["profile", "t.trace"]);
    assert!(text(&output.stdout).ends_with("rate = \"2200/s\"\nburst = 2\nunit = \"messages\"\n"));
}

#[test]
fn under_nsqds_name_it_is_nsqd() {
    let folder = Folder::new("nsqd");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tidegate"), folder.0.join("nsqd")).unwrap();
    let output = Command::new(folder.0.join("nsqd")).arg("--version").output().unwrap();
    // What nsq's own scripts cut out of the line.
    let version = text(&output.stdout);
    assert_eq!(version.split_whitespace().take(2).collect::<Vec<_>>(), ["nsqd", "v1.3.0"]);
    let output = Command::new(folder.0.join("nsqd")).arg("-nope").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_broker_that_is_not_there_is_said_with_its_address() {
    let folder = Folder::new("absent");
    // A port that was free a moment ago.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    drop(taken);
    let output = folder.tidegate(&["status", "--admin", &address]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains(&format!("no broker answers at {address}")), "{}", text(&output.stderr));
    let output = folder.tidegate(&["limits", "set", "orders", "1/s", "1", "--admin", &address]);
    assert!(text(&output.stderr).contains("--token-file"), "{}", text(&output.stderr));
}

/// An admin API of a broker that answers two reads, each only with a token.
fn guarded_api() -> (String, std::thread::JoinHandle<()>) {
    use std::io::{BufRead, BufReader, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let serve = move || {
        for stream in listener.incoming().take(2) {
            let mut stream = stream.expect("the command connects");
            let head = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            // All of the head is read: a connection that is closed with something unread is reset.
            let known = head.filter(|line| *line == format!("authorization: Bearer {}", "7".repeat(64))).count() > 0;
            let (status, body) = if known { ("200 OK", r#"{"limits": []}"#) } else { ("401 Unauthorized", "{}") };
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
                .expect("the command waits for its answer");
        }
    };
    (address, std::thread::spawn(serve))
}

#[test]
fn reads_from_an_api_that_wants_a_token_say_how_to_give_it_and_take_it() {
    use std::os::unix::fs::OpenOptionsExt;
    let folder = Folder::new("guarded");
    let (address, api) = guarded_api();
    let output = folder.tidegate(&["status", "--admin", &address]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("--token-file FILE"), "{}", text(&output.stderr));
    let mut file = fs::OpenOptions::new();
    let mut file = file.write(true).create_new(true).mode(0o600).open(folder.0.join("a.token")).unwrap();
    std::io::Write::write_all(&mut file, "7".repeat(64).as_bytes()).unwrap();
    let output = folder.tidegate(&["limits", "list", "--admin", &address, "--token-file", "a.token"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    api.join().unwrap();
}

#[test]
fn completions_exist_for_each_shell() {
    let folder = Folder::new("completions");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = folder.tidegate(&["completions", shell]);
        assert!(output.status.success() && text(&output.stdout).contains("mem-queue-size"), "{shell}");
    }
}
