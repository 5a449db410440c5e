//! From the section as it is written to [`Config`].

use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tidegate_core::Rate;
use tidegate_runtime::config::units::{Bytes, Span};
use tidegate_runtime::config::{ConfigError, Document};

use super::checked::{
    AccessLog, Amount, Certificate, Config, Http, Limits, Listener, LogTarget, Spool, Tenant, Tenants, Timeouts, Trust,
};
use super::section::{
    AccessLogSection, CapacitiesSection, CertificateSection, HttpSection, LimitsSection, ListenSection, Section,
    SpoolSection, TenantSection, TenantsSection, TimeoutsSection,
};
use super::words::{ByteRate, CapacityText, LogAlways, ProxyProtocolIn, TenantBy};
use super::{edges, tls};
use crate::config::place::{Place, host_name, own_name};
use crate::machine::neighbours::NeighboursConfig;
use crate::machine::sampling::{Always, Sampling};
use crate::machine::{Kind, Resource};

/// Most tenants that can be known at once.
const MOST_TENANTS: usize = NeighboursConfig::TENANTS_MAX as usize;

/// Most name servers that are asked.
const NAME_SERVERS_MAX: usize = 8;

/// The part of a file that is the proxy's.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    proxy: Section,
}

impl Config {
    /// The section `[proxy]` of `document`, whatever else is in it; `cpus` is how many this process may use.
    pub fn from_document(document: &Document, cpus: usize) -> Result<Self, ConfigError> {
        let File { proxy } = document.parse()?;
        Self::from_section(proxy, document, cpus)
    }

    /// `section` of `document`, checked.
    pub fn from_section(section: Section, document: &Document, cpus: usize) -> Result<Self, ConfigError> {
        let place = Place { document, key: "proxy".to_owned() };
        let cpus = cpus.clamp(1, 256);
        let threads = place.number("threads", section.threads, cpus, 1..=256)?;
        let lists = section.lists.into_iter().map(|(name, list)| (name, list.cidr)).collect();
        let certificates = certificates(&place, section.certificate)?;
        let listeners = listeners(&place, section.listen, !certificates.is_empty())?;
        let upstreams = edges::upstreams(&place, section.upstream)?;
        let routes = edges::routes(&place, section.route, &upstreams, &lists)?;
        let sni = edges::sni_rules(&place, section.sni, &lists)?;
        let tenants = tenants(&place, &section.tenants, section.tenant)?;
        if lists.contains_key("") {
            return Err(place.problem(
                "lists",
                "found a list without a name",
                "give it a name, as in [proxy.lists.office]",
            ));
        }
        let mut config = Self {
            threads,
            overflow_threads: place.number("overflow_threads", section.overflow_threads, threads, 0..=threads)?,
            drain_timeout: place.span("drain_timeout", section.drain_timeout, secs(30), Duration::ZERO)?,
            trusted: section.trusted,
            forwarded: section.forwarded,
            trace: section.trace,
            strict_sni: section.strict_sni,
            ticket_keys: ticket_keys(&place, section.ticket_keys)?,
            admin: admin(&place, section.admin_address.as_deref())?,
            lend: section.lend_address.as_deref().map(|text| address(&place, "lend_address", text)).transpose()?,
            name_servers: name_servers(&place, &section.name_servers)?,
            upgrade_socket: section.upgrade_socket.map(|path| upgrade_socket(&place, path)).transpose()?,
            listeners,
            certificates,
            upstreams,
            routes,
            sni,
            lists,
            tenants,
            limits: limits(&place.below("limits"), &section.limits)?,
            timeouts: timeouts(&place.below("timeouts"), &section.timeouts)?,
            http: http(&place.below("http"), &section.http)?,
            spool: section.spool.map(|spool| spool_of(&place.below("spool"), spool)).transpose()?,
            access_log: section.access_log.map(|log| access_log(&place.below("access_log"), log)).transpose()?,
            warnings: Vec::new(),
        };
        config.warnings = warnings(&config);
        Ok(config)
    }
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn address(place: &Place<'_>, key: &str, text: &str) -> Result<SocketAddr, ConfigError> {
    let numbers = match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.to_owned(),
    };
    numbers.parse().map_err(|_| {
        let remedy = "expected address:port such as \"127.0.0.1:8080\", \"0.0.0.0:443\" or \"[::]:443\"";
        place.problem(key, format_args!("found {text:?}"), remedy)
    })
}

fn admin(place: &Place<'_>, given: Option<&str>) -> Result<Option<SocketAddr>, ConfigError> {
    // The port after the one of the broker's admin API.
    let text = given.unwrap_or("127.0.0.1:4154");
    if text.is_empty() { Ok(None) } else { address(place, "admin_address", text).map(Some) }
}

/// Addresses, with port 53 unless they say another.
fn name_servers(place: &Place<'_>, given: &[String]) -> Result<Vec<SocketAddr>, ConfigError> {
    if given.len() > NAME_SERVERS_MAX {
        let remedy = format!("expected at most {NAME_SERVERS_MAX}");
        return Err(place.problem("name_servers", format_args!("found {}", given.len()), remedy));
    }
    let one = |(index, text): (usize, &String)| {
        let bare = || text.parse().ok().map(|address| SocketAddr::new(address, 53));
        text.parse().ok().or_else(bare).ok_or_else(|| {
            let remedy = "expected an address such as \"10.0.0.2\", \"127.0.0.1:8600\" or \"[::1]:53\"";
            place.problem(&format!("name_servers[{index}]"), format_args!("found {text:?}"), remedy)
        })
    };
    given.iter().enumerate().map(one).collect()
}

fn upgrade_socket(place: &Place<'_>, path: PathBuf) -> Result<PathBuf, ConfigError> {
    // What the kernel takes, less a dot and the number of a process, under which the socket is made.
    const BYTES_MAX: usize = 107 - 11;
    let bytes = path.as_os_str().len();
    if bytes == 0 || bytes > BYTES_MAX {
        let found = format_args!("found a path of {bytes} bytes");
        return Err(place.problem("upgrade_socket", found, "expected 1 to 96, such as \"/run/tidegate/upgrade.sock\""));
    }
    Ok(path)
}

fn listeners(
    place: &Place<'_>,
    sections: Vec<ListenSection>,
    has_certificate: bool,
) -> Result<Vec<Listener>, ConfigError> {
    let mut listeners: Vec<Listener> = Vec::new();
    // Without one: somewhere, and only for this machine.
    let sections = if sections.is_empty() { vec![ListenSection::default()] } else { sections };
    for (index, section) in sections.into_iter().enumerate() {
        let place = place.below(format_args!("listen[{index}]"));
        let default = if section.tls { "127.0.0.1:8443" } else { "127.0.0.1:8080" };
        let address = address(&place, "address", section.address.as_deref().unwrap_or(default))?;
        if section.tls && !has_certificate {
            let remedy = "add [[proxy.certificate]] with cert and key, or leave tls out";
            return Err(place.problem("tls", "TLS without a certificate", remedy));
        }
        let tls_policy = tls::policy(&place, &section)?;
        let alpn = section.alpn.unwrap_or_else(|| vec!["h2".to_owned(), "http/1.1".to_owned()]);
        if let Some(unknown) = alpn.iter().find(|name| !matches!(name.as_str(), "h2" | "http/1.1")) {
            let remedy = "expected \"h2\", \"http/1.1\" or both";
            return Err(place.problem("alpn", format_args!("found {unknown:?}"), remedy));
        }
        let speaks = |name: &str| alpn.iter().any(|spoken| spoken == name);
        if alpn.is_empty() {
            return Err(place.problem("alpn", "nothing is spoken", "expected \"h2\", \"http/1.1\" or both"));
        }
        if address.port() != 0 && listeners.iter().any(|other| other.address == address) {
            return Err(place.problem("address", format_args!("{address} is there twice"), "keep one of them"));
        }
        listeners.push(Listener {
            address,
            tls: section.tls,
            tls_policy,
            http2: speaks("h2"),
            http1: speaks("http/1.1"),
            proxy_protocol: section.proxy_protocol,
        });
    }
    Ok(listeners)
}

fn certificates(place: &Place<'_>, sections: Vec<CertificateSection>) -> Result<Vec<Certificate>, ConfigError> {
    let mut certificates: Vec<Certificate> = Vec::new();
    for (index, section) in sections.into_iter().enumerate() {
        let place = place.below(format_args!("certificate[{index}]"));
        let mut names = Vec::new();
        for name in &section.names {
            names.push(host_name(&place, "names", name)?);
        }
        certificates.push(Certificate { names, cert: section.cert, key: section.key, ocsp: section.ocsp });
    }
    Ok(certificates)
}

fn ticket_keys(place: &Place<'_>, files: Vec<PathBuf>) -> Result<Vec<PathBuf>, ConfigError> {
    /// Each is looked at for every ticket of a key that is gone.
    const MOST: usize = 16;
    if files.len() <= MOST {
        return Ok(files);
    }
    let remedy = "expected 16 at most: a key for each half of a day is enough";
    Err(place.problem("ticket_keys", format_args!("found {}", files.len()), remedy))
}

fn tenants(place: &Place<'_>, section: &TenantsSection, named: Vec<TenantSection>) -> Result<Tenants, ConfigError> {
    let max_tracked = place.below("tenants").number("max_tracked", section.max_tracked, 100_000, 16..=MOST_TENANTS)?;
    match &section.by {
        TenantBy::Header(name) if section.header_from.is_empty() => {
            let remedy = format!(
                "any client could send {name}: add header_from = [\"10.0.0.0/8\"], the addresses of whoever sets it, or \
                 [\"0.0.0.0/0\", \"::/0\"] to believe everybody"
            );
            let found = format_args!("found \"header:{name}\" without header_from");
            return Err(place.problem("tenants.by", found, remedy));
        }
        TenantBy::Header(_) => {}
        by if !section.header_from.is_empty() => {
            let remedy = "leave it out, or say by = \"header:NAME\": it lists who may send that header";
            return Err(place.problem("tenants.header_from", format_args!("found it with by = \"{by}\""), remedy));
        }
        _ => {}
    }
    let mut tenants: Vec<Tenant> = Vec::new();
    for (index, tenant) in named.into_iter().enumerate() {
        let place = place.below(format_args!("tenant[{index}]"));
        own_name(&place, "name", &tenant.name)?;
        if tenant.name == "other" {
            let remedy = "choose another: it is the name of those that there is no room for";
            return Err(place.problem("name", "found \"other\"", remedy));
        }
        if tenants.iter().any(|other| other.name == tenant.name) {
            let found = format_args!("{} is there twice", tenant.name);
            return Err(place.problem("name", found, "keep one; `match` takes all names that it is known by"));
        }
        let matches = match section.by {
            _ if tenant.matches.is_empty() => vec![tenant.name.to_ascii_lowercase()],
            TenantBy::Sni | TenantBy::Host => {
                tenant.matches.iter().map(|name| host_name(&place, "match", name)).collect::<Result<_, _>>()?
            }
            TenantBy::Route | TenantBy::Header(_) => tenant.matches,
        };
        if let Some(twice) = matches.iter().find(|name| tenants.iter().any(|other| other.matches.contains(name))) {
            let found = format_args!("{twice} belongs to two tenants");
            return Err(place.problem("match", found, "keep one of them"));
        }
        let weight = place.number("weight", tenant.weight, 1, 1..=1000)?;
        let bandwidth = tenant.bandwidth.map(|ByteRate(bytes)| bytes);
        tenants.push(Tenant { name: tenant.name, weight, bandwidth, matches });
    }
    if tenants.len() >= max_tracked {
        let found = format_args!("found {max_tracked}, but {} tenants have names", tenants.len());
        return Err(place.problem("tenants.max_tracked", found, "expected more than there are [[proxy.tenant]]"));
    }
    let (by, header_from) = (section.by.clone(), section.header_from.clone());
    Ok(Tenants { by, header_from, unknown: section.unknown, max_tracked, named: tenants })
}

fn limits(place: &Place<'_>, section: &LimitsSection) -> Result<Limits, ConfigError> {
    // Half of the overflow prototype's tenth of a second at the least: shares cannot follow faster than they are known.
    let tick = place.span("tick", section.tick, Duration::from_millis(100), Duration::from_millis(10))?;
    if tick > secs(10) {
        return Err(place.problem("tick", format_args!("found {tick:?}"), "expected a duration from 10ms to 10s"));
    }
    Ok(Limits {
        mode: section.mode,
        reserve: place.number("reserve", section.reserve, 0.2, 0.0..=NeighboursConfig::RESERVE_MAX)?,
        newcomers: place.number("newcomers", section.newcomers, 0.05, 0.0..=NeighboursConfig::NEWCOMERS_MAX)?,
        tick,
        patience: place.span("patience", section.patience, secs(1), Duration::ZERO)?,
        capacities: capacities(&place.below("capacities"), &section.capacities)?,
        refuse_hello: section.refuse_hello,
        rate_limit_headers: section.rate_limit_headers,
    })
}

fn capacities(place: &Place<'_>, section: &CapacitiesSection) -> Result<[Amount; Resource::COUNT], ConfigError> {
    let mut capacities = [Amount::Learnt; Resource::COUNT];
    for resource in Resource::ALL {
        let text = match resource {
            Resource::Handshakes => &section.handshakes,
            Resource::Connections => &section.connections,
            Resource::Requests => &section.requests,
            Resource::NetworkBytes => &section.network_bytes,
            Resource::DiskBytes => &section.disk_bytes,
            Resource::EventTime => &section.event_time,
            Resource::Memory => &section.memory,
            Resource::HandshakeTime => &section.handshake_time,
        };
        capacities[resource.index()] = amount(place, resource, text)?;
    }
    Ok(capacities)
}

fn amount(place: &Place<'_>, resource: Resource, text: &CapacityText) -> Result<Amount, ConfigError> {
    let is_bytes = matches!(resource, Resource::NetworkBytes | Resource::DiskBytes);
    let (default, word) = if is_bytes { (Amount::Unlimited, "unlimited") } else { (Amount::Learnt, "learnt") };
    let accepted = match resource {
        _ if resource.is_time() => "\"learnt\", or how many cores' time, such as 1.5",
        _ if is_bytes => "\"unlimited\", or bytes per second such as \"100MB/s\"",
        Resource::Memory => "\"learnt\", or bytes such as \"512MiB\"",
        Resource::Connections => "\"learnt\", or a number such as 10000",
        _ => "\"learnt\", or a rate such as \"2560/s\"",
    };
    let wrong = |found: &dyn Display| {
        place.problem(resource.name(), format_args!("found {found}"), format_args!("expected {accepted}"))
    };
    let amount = match text {
        CapacityText::Default => return Ok(default),
        CapacityText::Text(text) if text == word => return Ok(default),
        CapacityText::Number(number) if resource.is_time() => whole(number * 1e9),
        CapacityText::Number(number) => whole(*number),
        CapacityText::Text(text) => match resource {
            _ if resource.is_time() => None,
            _ if is_bytes => {
                let amount = text.trim().strip_suffix("/s").and_then(|bytes| bytes.parse().ok());
                amount.map(|Bytes(bytes)| bytes)
            }
            Resource::Memory => text.parse().ok().map(|Bytes(bytes)| bytes),
            _ if resource.kind() == Kind::Counter => text.parse::<Rate>().ok().and_then(|rate| whole(rate.as_per_s())),
            _ => text.parse().ok(),
        }
        .ok_or_else(|| wrong(&format_args!("{text:?}")))
        .map(Some)?,
    };
    match amount {
        Some(amount) if amount > 0 => Ok(Amount::Fixed(amount)),
        _ => Err(wrong(&Found(text))),
    }
}

/// A capacity as it was found.
struct Found<'a>(&'a CapacityText);

impl Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            CapacityText::Default => f.write_str("nothing"),
            CapacityText::Text(text) => write!(f, "{text:?}"),
            CapacityText::Number(number) => write!(f, "{number}"),
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is checked to be in range")]
fn whole(number: f64) -> Option<u64> {
    (1.0..9e15).contains(&number).then_some(number.round() as u64)
}

fn timeouts(place: &Place<'_>, section: &TimeoutsSection) -> Result<Timeouts, ConfigError> {
    const LEAST: Duration = Duration::from_millis(10);
    let span = |key, given, default| place.span(key, given, secs(default), LEAST);
    Ok(Timeouts {
        client_hello: span("client_hello", section.client_hello, 5)?,
        handshake: span("handshake", section.handshake, 10)?,
        header: span("header", section.header, 10)?,
        body_idle: span("body_idle", section.body_idle, 30)?,
        body_rate_min: section.body_rate_min.map(|ByteRate(bytes)| bytes),
        upstream_connect: span("upstream_connect", section.upstream_connect, 3)?,
        upstream_first_byte: span("upstream_first_byte", section.upstream_first_byte, 60)?,
        upstream_idle: span("upstream_idle", section.upstream_idle, 60)?,
        upstream_keep_alive: span("upstream_keep_alive", section.upstream_keep_alive, 4)?,
        total: match section.total {
            // Zero, as the default: a download may take a day, if its bytes move.
            None | Some(Span(Duration::ZERO)) => None,
            given => Some(span("total", given, 0)?),
        },
        write_stall: span("write_stall", section.write_stall, 30)?,
        write_rate_min: section.write_rate_min.map(|ByteRate(bytes)| bytes),
        keep_alive: span("keep_alive", section.keep_alive, 60)?,
        upgraded_idle: span("upgraded_idle", section.upgraded_idle, 3_600)?,
    })
}

fn http(place: &Place<'_>, section: &HttpSection) -> Result<Http, ConfigError> {
    const WINDOW: RangeInclusive<u64> = 65_535..=(1 << 31) - 1;
    Ok(Http {
        max_head: place.bytes("max_head", section.max_head, 32 << 10, 1 << 10..=1 << 20)?,
        max_headers: place.number("max_headers", section.max_headers, 100, 8..=Http::HEADERS_MAX)?,
        max_body: match section.max_body {
            None | Some(Bytes(0)) => None,
            Some(Bytes(bytes)) => Some(bytes),
        },
        h2_max_concurrent_streams: place.number(
            "h2_max_concurrent_streams",
            section.h2_max_concurrent_streams,
            128,
            1..=10_000,
        )?,
        h2_max_header_list: place.bytes(
            "h2_max_header_list",
            section.h2_max_header_list,
            32 << 10,
            1 << 10..=1 << 20,
        )?,
        h2_max_resets: place.number("h2_max_resets", section.h2_max_resets, 20, 1..=10_000)?,
        h2_stream_window: place.bytes("h2_stream_window", section.h2_stream_window, 65_535, WINDOW)?,
        h2_connection_window: place.bytes("h2_connection_window", section.h2_connection_window, 1 << 20, WINDOW)?,
        h2_websocket: section.h2_websocket.unwrap_or(true),
    })
}

fn spool_of(place: &Place<'_>, section: SpoolSection) -> Result<Spool, ConfigError> {
    Ok(Spool {
        above: place.bytes("above", section.above, 1 << 20, 0..=1 << 40)?,
        directory: section.directory.unwrap_or_else(|| "tidegate-data/spool".into()),
        max_bytes: place.bytes("max_bytes", section.max_bytes, 1 << 30, 1 << 20..=1 << 50)?,
        threads: place.number("threads", section.threads, 2, 1..=64)?,
    })
}

fn access_log(place: &Place<'_>, section: AccessLogSection) -> Result<AccessLog, ConfigError> {
    let to = match section.path {
        path if path == Path::new("stdout") => LogTarget::Stdout,
        path if path.as_os_str().is_empty() => {
            let remedy = "expected a file or \"stdout\"; without [proxy.access_log] nothing is written";
            return Err(place.problem("path", "found \"\"", remedy));
        }
        path => LogTarget::File(path),
    };
    let always = section.always.unwrap_or_else(|| vec![LogAlways::ServerErrors, LogAlways::Traced]);
    let is_always = |what| always.contains(&what);
    let always = Always {
        server_errors: is_always(LogAlways::ServerErrors),
        refused: is_always(LogAlways::Refused),
        traced: is_always(LogAlways::Traced),
    };
    let sampling = Sampling { sample: place.number("sample", section.sample, 1.0, 0.0..=1.0)?, always };
    Ok(AccessLog { to, format: section.format, sampling })
}

fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if config.routes.is_empty() {
        warnings.push("proxy has no route: every request gets 404; add [[proxy.route]] with an upstream".to_owned());
    }
    for listener in &config.listeners {
        if listener.proxy_protocol != ProxyProtocolIn::Off && config.trusted.is_empty() {
            warnings.push(format!(
                "{} takes the PROXY protocol, but proxy.trusted is empty: nobody's header is believed",
                listener.address
            ));
        }
    }
    if let Some(admin) = config.admin.filter(|admin| !admin.ip().is_loopback()) {
        warnings.push(format!(
            "proxy.admin_address is {admin}, which other machines may reach: the token travels there unencrypted"
        ));
    }
    for resource in Resource::ALL {
        let most = NeighboursConfig::capacity_max(resource);
        let Amount::Fixed(units) = config.limits.capacities[resource.index()] else { continue };
        if units / (config.threads as u64) > most {
            warnings.push(format!(
                "proxy.limits.capacities.{} is more than can be counted: in force is {most} for each of proxy.threads",
                resource.name()
            ));
        }
    }
    if config.trusted.iter().any(|range| range.contains([0, 0, 0, 1].into()) && range.contains([255, 0, 0, 1].into())) {
        warnings.push("proxy.trusted holds every address: any client can say that it is another".to_owned());
    }
    for (index, upstream) in config.upstreams.iter().enumerate() {
        if upstream.tls.as_ref().is_some_and(|tls| tls.trust == Trust::Unverified) {
            warnings.push(format!(
                "tls.verify of upstream {} is false: whoever answers in the place of its servers gets its requests",
                upstream.name
            ));
        }
        if !config.routes.iter().any(|route| route.upstream == index) {
            warnings.push(format!("no route leads to upstream {}", upstream.name));
        }
        let threads = config.threads;
        let divided = [
            ("max_connections", upstream.max_connections),
            ("max_streams", upstream.max_streams),
            ("queue", upstream.queue),
        ];
        for (key, most) in divided {
            if most > 0 && (most as usize) < threads {
                warnings.push(format!(
                    "{key} of upstream {} is {most}, but each of {threads} threads has one at least: in force is \
                     {threads}; fewer need fewer proxy.threads",
                    upstream.name
                ));
            }
        }
    }
    warnings
}
