//! From the section as it is written to [`Config`].

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use tidegate_runtime::config::units::Span;
use tidegate_runtime::config::{ConfigError, Document, suggest};

use super::section::{ClassSection, DeviceSection, MatchSection, Section};
use super::words::{MarkText, Ports, PrefixText};
use super::{Config, DEVICES_MAX};
use crate::machine::class_id::ClassId;
use crate::machine::device::{CLASSES_MAX, Class, Device, Match, Mode, Prefix};
use crate::machine::kinds::{Condition, arrange};
use crate::machine::line_rate::LineRate;
use crate::machine::program::RULES_MAX;
use crate::machine::tree::{DEPTH_MAX, HANDLE, depth};

/// After the proxy's 4154, the hop's 4156 and lending's 4157.
const ADMIN: &str = "127.0.0.1:4158";
/// As measured at 1 and 2 Gbit/s with 1 to 16 flows: 98 % of the rate and more; below it bursts leave the link idle.
const DELAY: Duration = Duration::from_micros(60);
/// Longest name of a device, by the kernel (`IFNAMSIZ` without its end).
const DEVICE_BYTES_MAX: usize = 15;
/// Highest VLAN; 0 and 4095 are reserved.
const VLAN_MAX: u16 = 4_094;

/// The part of a file that is the shaper's.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    shaper: Section,
}

/// A section of the file, for errors in it.
struct Place<'a> {
    document: &'a Document,
    key: String,
}

impl<'a> Place<'a> {
    fn below(&self, key: impl Display) -> Place<'a> {
        Place { document: self.document, key: format!("{}.{key}", self.key) }
    }

    fn problem(&self, key: &str, found: impl Display, remedy: impl Display) -> ConfigError {
        self.document.problem(&format!("{}.{key}", self.key), found, remedy)
    }

    fn at_most(&self, key: &str, found: usize, most: usize) -> Result<(), ConfigError> {
        if found > most {
            return Err(self.problem(key, format_args!("found {found} entries"), format!("expected at most {most}")));
        }
        Ok(())
    }
}

impl Config {
    /// The section `[shaper]` of `document`, whatever else is in it.
    ///
    /// # Errors
    /// What is wrong, with file, line, key, value and remedy.
    pub fn from_document(document: &Document) -> Result<Self, ConfigError> {
        let File { shaper } = document.parse()?;
        Self::from_section(shaper, document)
    }

    /// `section` of `document`, checked.
    ///
    /// # Errors
    /// As [`Self::from_document`].
    pub fn from_section(section: Section, document: &Document) -> Result<Self, ConfigError> {
        let place = Place { document, key: "shaper".to_owned() };
        place.at_most("device", section.device.len(), DEVICES_MAX)?;
        let batch_timers = section.batch_timers;
        let mut devices: Vec<Device> = Vec::with_capacity(section.device.len());
        for (index, section) in section.device.into_iter().enumerate() {
            let place = place.below(format_args!("device[{index}]"));
            let device = Device { batch_timers, ..device(&place, section)? };
            if devices.iter().any(|other| other.name == device.name && other.namespace == device.namespace) {
                let remedy = "keep one of them, with the classes of both";
                return Err(place.problem("name", format_args!("{} is there twice", device.name), remedy));
            }
            devices.push(device);
        }
        let admin = admin(&place, section.admin_address.as_deref().unwrap_or(ADMIN))?;
        let mut config = Self { admin, batch_timers, devices, warnings: Vec::new() };
        config.warnings = warnings(&config);
        Ok(config)
    }
}

fn admin(place: &Place<'_>, text: &str) -> Result<Option<SocketAddr>, ConfigError> {
    if text.is_empty() {
        return Ok(None);
    }
    let numbers = text.strip_prefix("localhost:").map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"));
    numbers.parse().map(Some).map_err(|_| {
        let remedy = "expected address:port such as \"127.0.0.1:4158\", or \"\" for none";
        place.problem("admin_address", format_args!("found {text:?}"), remedy)
    })
}

fn device(place: &Place<'_>, section: DeviceSection) -> Result<Device, ConfigError> {
    let DeviceSection { name, namespace, mode, rate, isolation, delay, default_class, class, .. } = section;
    let DeviceSection { control, ecn, hook, occupancy, .. } = section;
    let is_name = |name: &str| {
        !matches!(name, "" | "." | "..")
            && name.len() <= DEVICE_BYTES_MAX
            && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/' && byte != b':')
    };
    if !is_name(&name) {
        let remedy = format!("expected the name of a device as in `ip link`, at most {DEVICE_BYTES_MAX} bytes");
        return Err(place.problem("name", format_args!("found {name:?}"), remedy));
    }
    if namespace.as_ref().is_some_and(|namespace| !namespace.is_absolute()) {
        let remedy = "expected the whole path of its file, such as \"/run/netns/blue\" or \"/proc/4711/ns/net\"";
        return Err(place.problem("namespace", format_args!("found {namespace:?}"), remedy));
    }
    let Span(delay) = delay.unwrap_or(Span(DELAY));
    if !(Duration::from_micros(10)..=Duration::from_millis(100)).contains(&delay) {
        let remedy = "expected a duration from 10us to 100ms";
        return Err(place.problem("delay", format_args!("found {delay:?}"), remedy));
    }
    if mode == Mode::Attach {
        let own = [("rate", rate.is_some()), ("isolation", isolation), ("default_class", default_class.is_some())];
        if let Some((key, _)) = own.into_iter().find(|(_, is_given)| *is_given) {
            let remedy = "leave it out, or set mode = \"own\": with \"attach\" the tree is somebody else's";
            return Err(place.problem(key, "set for a tree that is not ours", remedy));
        }
    }
    place.at_most("class", class.len(), CLASSES_MAX)?;
    if class.is_empty() {
        let remedy = "add a [[shaper.device.class]] with name and rate";
        return Err(place.problem("class", "a device without classes has nothing to shape", remedy));
    }
    let names: Vec<String> = class.iter().map(|class| class.name.clone()).collect();
    let mut classes = Vec::with_capacity(class.len());
    for (index, section) in class.into_iter().enumerate() {
        classes.push(self::class(&place.below(format_args!("class[{index}]")), section, mode, &names)?);
    }
    let default_class = default_class.map(|name| index_of(place, "default_class", &name, &names)).transpose()?;
    let device = Device {
        name,
        namespace,
        mode,
        rate,
        control,
        isolation,
        delay,
        ecn,
        batch_timers: false,
        hook,
        occupancy,
        default_class,
        classes,
    };
    check_tree(place, &device)?;
    Ok(device)
}

/// What several classes are wrong about together.
fn check_tree(place: &Place<'_>, device: &Device) -> Result<(), ConfigError> {
    let (mut names, mut ids) = (BTreeSet::new(), BTreeSet::new());
    for (index, class) in device.classes.iter().enumerate() {
        let at = place.below(format_args!("class[{index}]"));
        if !names.insert(&class.name) {
            return Err(at.problem("name", format_args!("{} is there twice", class.name), "keep one of them"));
        }
        if let Some(id) = class.classid.filter(|id| !ids.insert(*id)) {
            return Err(at.problem("classid", format_args!("{id} is there twice"), "keep one of them"));
        }
        let up = |index: &usize| device.classes[*index].parent;
        if std::iter::successors(Some(index), up).skip(1).take(CLASSES_MAX).any(|above| above == index) {
            let remedy = "let one of them have no parent";
            return Err(at.problem("parent", format_args!("{} borrows from itself", class.name), remedy));
        }
        if device.mode == Mode::Own && class.ceil > class.rate && !device.can_borrow(index) {
            let remedy = "give the device a rate, or the class a parent: without one there is nothing to borrow from";
            return Err(at.problem("ceil", "above the rate", remedy));
        }
        if device.has_children(index) && !class.matches.is_empty() {
            let remedy = "move the rules into a class of its own below it: a class with children carries no packets";
            return Err(at.problem("match", format_args!("{} is the parent of others", class.name), remedy));
        }
    }
    if let Some(index) = device.default_class.filter(|index| device.has_children(*index)) {
        let remedy = "name a class that is nobody's parent";
        let found = format_args!("{} is the parent of others", device.classes[index].name);
        return Err(place.problem("default_class", found, remedy));
    }
    // In a tree of somebody else a packet is also known by the class that it was put into: a rule for each class.
    let known = if device.mode == Mode::Attach { device.classes.len() } else { 0 };
    let matches = device.classes.iter().flat_map(|class| &class.matches);
    let conditions: Vec<_> = matches.map(|when| Condition { when: when.clone(), priority: None }).collect();
    let rules = known + conditions.len();
    if rules > RULES_MAX {
        let remedy =
            format!("expected at most {RULES_MAX} on a device, with mode = \"attach\" counting each class once more");
        return Err(place.problem("class", format_args!("found {rules} rules"), remedy));
    }
    // Cgroups of the same depth have as many names in their paths.
    let depth_of = |path: &Path| u32::try_from(path.components().count()).unwrap_or(u32::MAX);
    if let Err(crowded) = arrange(&conditions, depth_of) {
        let remedy = "let rules look at the same fields, with prefixes of the same length, and give neighbouring ports as a range";
        return Err(place.problem("class", format_args!("found {crowded}"), remedy));
    }
    let depth = depth(device);
    if depth > DEPTH_MAX {
        let remedy = format!("expected at most {DEPTH_MAX}, of which the device's rate takes one and isolation two");
        return Err(place.problem("class", format_args!("the tree has {depth} levels"), remedy));
    }
    Ok(())
}

fn class(place: &Place<'_>, section: ClassSection, mode: Mode, names: &[String]) -> Result<Class, ConfigError> {
    let ClassSection { name, rate, ceil, parent, classid, matches } = section;
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"._-:".contains(&c);
    if name.is_empty() || name.len() > 64 || !name.bytes().all(plain) {
        let remedy = "expected 1 to 64 of letters, digits, `.`, `_`, `-` and `:`";
        return Err(place.problem("name", format_args!("found {name:?}"), remedy));
    }
    let classid = classid.map(|text| {
        text.parse::<ClassId>().map_err(|_| {
            let remedy = "expected major:minor in hexadecimal digits as `tc class show` has it, such as \"1:10\"";
            place.problem("classid", format_args!("found {text:?}"), remedy)
        })
    });
    let classid = classid.transpose()?;
    match mode {
        Mode::Own if rate.is_none() => {
            return Err(place.problem("rate", "a class needs a rate", "add one, such as rate = \"1 Gbit/s\""));
        }
        Mode::Own if classid.is_some() => {
            let remedy = format!("leave it out: classes of our own trees are numbered below {HANDLE:x}:");
            return Err(place.problem("classid", "set for a tree of our own", remedy));
        }
        Mode::Attach if classid.is_none() => {
            let remedy =
                "add the class of the kernel, such as classid = \"1:10\"; `tc class show dev DEVICE` lists them";
            return Err(place.problem("classid", "a class of somebody else's tree needs its number", remedy));
        }
        Mode::Attach if rate.is_some() || ceil.is_some() || parent.is_some() => {
            let key = if rate.is_some() {
                "rate"
            } else if ceil.is_some() {
                "ceil"
            } else {
                "parent"
            };
            let remedy = "leave it out: with mode = \"attach\" it is as the kernel has it";
            return Err(place.problem(key, "set for a tree that is not ours", remedy));
        }
        Mode::Own | Mode::Attach => {}
    }
    if ceil.is_some_and(|ceil| Some(ceil) < rate) {
        let found = format_args!("found {}", ceil.expect("it was compared in the line above"));
        return Err(place.problem("ceil", found, "expected the rate or more"));
    }
    let parent = parent.map(|parent| index_of(place, "parent", &parent, names)).transpose()?;
    let one = |(index, section)| rule(&place.below(format_args!("match[{index}]")), section);
    let matches = matches.into_iter().enumerate().map(one).collect::<Result<_, _>>()?;
    Ok(Class { name, rate, ceil, parent, classid, matches })
}

fn rule(place: &Place<'_>, section: MatchSection) -> Result<Match, ConfigError> {
    let MatchSection { cgroup, mark, source, destination, protocol, port, vlan } = section;
    if cgroup.as_ref().is_some_and(|cgroup| !cgroup.is_absolute()) {
        let remedy = "expected the whole path of its folder, such as \"/sys/fs/cgroup/tenant-a\"";
        return Err(place.problem("cgroup", format_args!("found {cgroup:?}"), remedy));
    }
    if let Some(vlan) = vlan.filter(|vlan| !(1..=VLAN_MAX).contains(vlan)) {
        return Err(place.problem("vlan", format_args!("found {vlan}"), format!("expected 1 to {VLAN_MAX}")));
    }
    let rule = Match {
        cgroup,
        mark: mark.map(|MarkText(mark)| mark),
        source: source.map(|PrefixText(prefix)| prefix),
        destination: destination.map(|PrefixText(prefix)| prefix),
        protocol,
        ports: port.map(|Ports(ports)| ports),
        vlan,
    };
    if rule == Match::default() {
        let remedy = "give one of cgroup, mark, source, destination, protocol, port and vlan; for all that no other \
                      class takes, name this one in default_class";
        return Err(place.document.problem(&place.key, "a rule without a condition", remedy));
    }
    let is_v4 = |prefix: Option<Prefix>| prefix.map(|prefix| prefix.address.is_ipv4());
    if is_v4(rule.source).zip(is_v4(rule.destination)).is_some_and(|(source, destination)| source != destination) {
        let remedy = "no packet has addresses of both kinds: make two rules of it";
        return Err(place.problem("destination", "of another kind than the source", remedy));
    }
    Ok(rule)
}

fn index_of(place: &Place<'_>, key: &str, name: &str, names: &[String]) -> Result<usize, ConfigError> {
    names.iter().position(|other| other == name).ok_or_else(|| {
        let remedy = match suggest(name, names.iter().map(String::as_str)) {
            Some(meant) => format!("did you mean {meant:?}?"),
            None => "name a class of this device".to_owned(),
        };
        place.problem(key, format_args!("there is no class {name:?}"), remedy)
    })
}

fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if config.devices.is_empty() {
        warnings.push("shaper has no device: nothing is shaped".to_owned());
    }
    if let Some(admin) = config.admin.filter(|admin| !admin.ip().is_loopback()) {
        warnings.push(format!(
            "shaper.admin_address is {admin}, which other machines may reach: the token travels there unencrypted"
        ));
    }
    for device in &config.devices {
        let guaranteed = |parent: Option<usize>| -> u64 {
            let below = device.classes.iter().filter(|class| class.parent == parent);
            below.filter_map(|class| class.rate).map(LineRate::bytes_per_s).sum()
        };
        let mut check = |rate: Option<LineRate>, below: u64, name: &str| {
            if let Some(rate) = rate.filter(|rate| below > rate.bytes_per_s()) {
                warnings.push(format!(
                    "the classes below {name} are guaranteed more than its {rate}: the guarantees cannot all hold"
                ));
            }
        };
        check(device.rate, guaranteed(None), &format!("device {}", device.name));
        for (index, class) in device.classes.iter().enumerate() {
            check(class.rate, guaranteed(Some(index)), &format!("class {} of {}", class.name, device.name));
        }
        for (index, class) in device.classes.iter().enumerate() {
            let is_reached = !class.matches.is_empty() || device.default_class == Some(index);
            if device.mode == Mode::Own && !is_reached && !device.has_children(index) {
                warnings.push(format!(
                    "class {} of {} has no match and is no default_class: no packet goes there",
                    class.name, device.name
                ));
            }
        }
    }
    warnings
}
