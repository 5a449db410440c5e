use std::time::Duration;

use tidegate_runtime::config::{ConfigError, Document};

use super::Config;
use crate::machine::device::{Control, Hook, Mode, Occupancy};

fn read(text: &str) -> Result<Config, ConfigError> {
    Config::from_document(&Document::new("t.toml", text))
}

fn error(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

/// A device with a class, and more lines of the class.
fn with(more: &str) -> String {
    format!("[[shaper.device]]\nname = \"eth0\"\n[[shaper.device.class]]\nname = \"a\"\nrate = \"1 Gbit/s\"\n{more}\n")
}

#[test]
fn a_device_of_the_least_has_every_default() {
    let config = read(&with("match = [ { port = 443 } ]")).unwrap();
    assert_eq!(config.admin.unwrap().to_string(), "127.0.0.1:4158");
    let [device] = &config.devices[..] else { panic!("one device") };
    assert_eq!((device.mode, device.control, device.isolation), (Mode::Own, Control::Integral, false));
    assert_eq!((device.delay, device.ecn, device.default_class), (Duration::from_micros(60), false, None));
    assert_eq!(config.warnings, Vec::<String>::new());
}

#[test]
fn everything_can_be_said() {
    let config = read(
        r#"
        [shaper]
        admin_address = ""
        batch_timers = true
        [[shaper.device]]
        name = "veth-a"
        namespace = "/run/netns/blue"
        rate = "10 Gbit/s"
        control = "dctcp"
        isolation = true
        delay = "100us"
        ecn = true
        hook = "clsact"
        occupancy = "tracepoint"
        default_class = "rest"
        [[shaper.device.class]]
        name = "tenants"
        rate = "2 Gbit/s"
        ceil = "10 Gbit/s"
        [[shaper.device.class]]
        name = "a"
        rate = "1 Gbit/s"
        ceil = "2 Gbit/s"
        parent = "tenants"
        match = [ { cgroup = "/sys/fs/cgroup/a" }, { mark = "0x7/0xff", source = "10.0.0.0/24", port = "80-90" } ]
        [[shaper.device.class]]
        name = "rest"
        rate = "100 Mbit/s"
        match = [ { destination = "fd00::/8", protocol = "udp" }, { vlan = 12 } ]
        [[shaper.device]]
        name = "eth1"
        mode = "attach"
        [[shaper.device.class]]
        name = "theirs"
        classid = "1:10"
        "#,
    )
    .unwrap();
    let [own, theirs] = &config.devices[..] else { panic!("two devices") };
    assert_eq!((config.admin, own.default_class, own.classes[1].parent), (None, Some(2), Some(0)));
    assert!(config.batch_timers && own.batch_timers && theirs.batch_timers);
    assert_eq!((own.hook, own.occupancy), (Hook::Clsact, Occupancy::Tracepoint));
    assert_eq!(own.classes[1].matches[1].ports, Some(80..=90));
    assert_eq!(theirs.classes[0].classid.unwrap().to_string(), "1:10");
    assert_eq!(config.warnings, Vec::<String>::new());
}

#[test]
fn errors_name_file_line_key_value_and_remedy() {
    assert_eq!(
        error("[[shaper.device]]\nname = \"eth0\"\n[[shaper.device.class]]\nname = \"a\"\nrate = \"fast\"\n"),
        "t.toml:5: shaper.device[0].class[0].rate: invalid value: string \"fast\"; expected a rate from 8 kbit/s to 1 \
         Tbit/s such as \"1 Gbit/s\", \"2.5 Gbit/s\" or \"100 Mbit/s\""
    );
    assert_eq!(
        error(&with("ceil = \"2 Gbit/s\"")),
        "t.toml:6: shaper.device[0].class[0].ceil: above the rate; give the device a rate, or the class a parent: \
         without one there is nothing to borrow from"
    );
    assert_eq!(
        error("[[shaper.device]]\nname = \"a-name-of-17-bytes\"\n"),
        "t.toml:2: shaper.device[0].name: found \"a-name-of-17-bytes\"; expected the name of a device as in `ip link`, \
         at most 15 bytes"
    );
    let control = error("[[shaper.device]]\nname = \"eth0\"\ncontrol = \"pid\"\n");
    assert_eq!(
        control,
        "t.toml:3: shaper.device[0].control: unknown variant `pid`; expected one of `integral`, `dctcp`, `off`"
    );
    assert!(error("[shaper]\ndevise = 1\n").contains("did you mean `device`?"));
    assert!(error("[shaper]\nadmin_address = \"4158\"\n").starts_with("t.toml:2: shaper.admin_address: found"));
    assert!(error(&with("match = [ {} ]")).contains("class[0].match[0]: a rule without a condition; give one of"));
    assert!(error(&with("match = [ { vlan = 4095 } ]")).contains("expected 1 to 4094"));
    assert!(error(&with("match = [ { source = \"10.0.0.1/8\" } ]")).contains("without bits beyond its length"));
    assert!(error(&with("classid = \"1:1\"")).contains("numbered below 71de:"));
    assert!(error(&with("parent = \"b\"")).contains("there is no class \"b\""));
    assert!(error(&with("parent = \"a\"")).contains("a borrows from itself"));
}

#[test]
fn trees_that_the_kernel_would_refuse_or_misread_are_found() {
    let class =
        |name: &str, more: &str| format!("[[shaper.device.class]]\nname = \"{name}\"\nrate = \"1 Mbit/s\"\n{more}\n");
    let device = |more: &str| format!("[[shaper.device]]\nname = \"eth0\"\n{more}\n");
    let twice = device("") + &class("a", "") + &class("a", "");
    assert!(
        error(&twice).starts_with("t.toml:9: shaper.device[0].class[1].name: a is there twice"),
        "{}",
        error(&twice)
    );
    let circle = device("") + &class("a", "parent = \"b\"") + &class("b", "parent = \"a\"");
    assert!(error(&circle).contains("borrows from itself"));
    let full = device("default_class = \"a\"") + &class("a", "") + &class("b", "parent = \"a\"");
    assert!(error(&full).contains("default_class: a is the parent of others"));
    let inner = device("") + &class("a", "match = [ { mark = 1 } ]") + &class("b", "parent = \"a\"");
    assert!(error(&inner).contains("a class with children carries no packets"));
    let chain = |length: usize| {
        let below = |at: usize| class(&format!("c{at}"), &format!("parent = \"c{}\"", at - 1));
        class("c0", "") + &(1..length).map(below).collect::<String>()
    };
    assert!(read(&(device("isolation = true\nrate = \"1 Gbit/s\"") + &chain(5))).is_ok());
    assert!(error(&(device("isolation = true\nrate = \"1 Gbit/s\"") + &chain(6))).contains("the tree has 9 levels"));
    let attach = device("mode = \"attach\"") + "[[shaper.device.class]]\nname = \"a\"\n";
    assert!(error(&attach).contains("needs its number"));
    let attach = device("mode = \"attach\"\nisolation = true") + &class("a", "");
    assert!(error(&attach).starts_with("t.toml:4: shaper.device[0].isolation: set for a tree that is not ours"));
    let rules = |number: usize| format!("match = [ {} ]", "{ mark = 1 }, ".repeat(number));
    assert!(read(&(device("") + &class("a", &rules(4_000)) + &class("b", &rules(96)))).is_ok());
    let many = device("") + &class("a", &rules(4_000)) + &class("b", &rules(97));
    assert!(error(&many).contains("found 4097 rules; expected at most 4096"));
    let ports: Vec<_> = (1..=65).map(|port| format!("{{ port = {port} }}")).collect();
    let ports = device("") + &class("a", &format!("match = [ {} ]", ports.join(", ")));
    assert!(error(&ports).contains("found 65 rules that differ in ports alone; at most 64"), "{}", error(&ports));
    let two = device("") + &class("a", "") + &device("") + &class("a", "");
    assert!(error(&two).contains("device[1].name: eth0 is there twice"));
    assert!(error(&device("")).contains("a device without classes"));
}

#[test]
fn what_is_probably_not_meant_is_said() {
    let more = "[[shaper.device.class]]\nname = \"b\"\nrate = \"2 Gbit/s\"\nmatch = [ { mark = 1 } ]\n";
    let text = with(more).replace("name = \"eth0\"", "name = \"eth0\"\nrate = \"1 Gbit/s\"");
    let warnings = read(&text).unwrap().warnings;
    assert_eq!(
        warnings,
        [
            "the classes below device eth0 are guaranteed more than its 1 Gbit/s: the guarantees cannot all hold",
            "class a of eth0 has no match and is no default_class: no packet goes there",
        ]
    );
    assert_eq!(read("[shaper]\n").unwrap().warnings, ["shaper has no device: nothing is shaped"]);
    assert!(
        read(&("[shaper]\nadmin_address = \"0.0.0.0:1\"\n".to_owned() + &with(""))).unwrap().warnings[0]
            .contains("token")
    );
}
