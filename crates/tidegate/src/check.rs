//! `tidegate check`: finds what is wrong in a file without starting anything.

use std::fs::File;

use serde_json::json;
use tidegate_proxy::config::{Config, UpstreamTls};
use tidegate_proxy::error::ProxyError;
use tidegate_proxy::io::{FileProblem, certificate_warnings, check_files};
use tidegate_runtime::causes::with_causes;
use tidegate_runtime::config::Document;
use tidegate_shaper::machine::device::{Class, Device};

use crate::cli::Check;
use crate::failure::Failure;
use crate::output::{self, Style};
use crate::proxy::remedy;
use crate::settings::{self, Settings};
use crate::shaper::WITHOUT_SHAPER;
use crate::steer;
use crate::words::{DisciplineWord, ModeWord, RateText, UnitWord};

pub(crate) fn run(args: &Check) -> Result<(), Failure> {
    let document = Document::read(&args.file)?;
    let settings = Settings::from_document(&document, &settings::host())?;
    for FileProblem { key, error } in settings.proxy.iter().flat_map(check_files) {
        // Which authorities a system trusts is its own matter: the file may be another machine's.
        if !matches!(error, ProxyError::SystemRoots { .. }) {
            return Err(document.problem(&key, with_causes(&error), remedy(&error)).into());
        }
    }
    if let Some(config) = &settings.steer {
        steer::check_placements(config, &document)?;
    }
    match Style::of(args.json) {
        Style::Json => output::json(&report(&settings)),
        Style::Table => {
            for warning in warnings(&settings) {
                output::line(format_args!("warning: {warning}"))?;
            }
            let proxy = match &settings.proxy {
                Some(proxy) => format!(", {}", counted(proxy.routes.len(), "route")),
                None => String::new(),
            };
            let steer = match &settings.steer {
                Some(steer) => format!(", steers to {}", counted(steer.nodes.len(), "broker")),
                None => String::new(),
            };
            let control = match &settings.control {
                Some(control) => {
                    let (nodes, topics) = (control.nodes.len(), control.topics.len());
                    let (proxies, limits) = (control.proxies.len(), control.limits.len());
                    let placed = format!(", {} to place on {}", counted(topics, "topic"), counted(nodes, "broker"));
                    let divided = format!(", {} divided over {proxies} proxies", counted(limits, "limit"));
                    if limits == 0 {
                        placed
                    } else if topics == 0 {
                        divided
                    } else {
                        placed + &divided
                    }
                }
                None => String::new(),
            };
            let shaper = match &settings.shaper {
                Some(shaper) => {
                    let classes = shaper.devices.iter().map(|device| device.classes.len()).sum();
                    let (devices, classes) = (counted(shaper.devices.len(), "device"), counted(classes, "class"));
                    format!(", shapes {devices} with {classes}")
                }
                None => String::new(),
            };
            let limits = counted(settings.limits.len(), "limit");
            output::line(format_args!("{}: ok, {limits}{proxy}{control}{steer}{shaper}", args.file.display()))
        }
    }
}

fn counted(number: usize, noun: &str) -> String {
    let end = match (number, noun.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{number} {noun}{end}")
}

/// Of the whole file.
fn warnings(settings: &Settings) -> Vec<String> {
    let proxy = settings
        .proxy
        .iter()
        .flat_map(|proxy| proxy.warnings.iter().cloned().chain(unreadable(proxy)).chain(certificate_warnings(proxy)));
    let steer = settings.steer.iter().flat_map(steer::unreadable);
    let control = settings.control.iter().flat_map(|control| control.warnings.iter().cloned());
    let shaper = settings.shaper.iter().flat_map(|shaper| {
        let unbuilt = cfg!(not(feature = "shaper")).then(|| format!("[shaper] is not run: {WITHOUT_SHAPER}"));
        unbuilt.into_iter().chain(shaper.warnings.iter().cloned())
    });
    settings.warnings.iter().cloned().chain(proxy).chain(steer).chain(control).chain(shaper).collect()
}

/// Files that the proxy would not start without, and that cannot be opened. They may be another machine's, or another user's, so it is no error.
fn unreadable(proxy: &Config) -> impl Iterator<Item = String> {
    let certificates = proxy.certificates.iter().enumerate().flat_map(|(index, certificate)| {
        let files =
            [("cert", Some(&certificate.cert)), ("key", Some(&certificate.key)), ("ocsp", certificate.ocsp.as_ref())];
        files.into_iter().filter_map(move |(key, file)| Some((format!("certificate[{index}].{key}"), file?.as_path())))
    });
    let keys =
        proxy.ticket_keys.iter().enumerate().map(|(index, file)| (format!("ticket_keys[{index}]"), file.as_path()));
    let upstreams = proxy.upstreams.iter().enumerate().flat_map(|(index, upstream)| {
        let files = upstream.tls.iter().flat_map(UpstreamTls::files);
        files.map(move |(key, file)| (format!("upstream[{index}].tls.{key}"), file))
    });
    certificates.chain(keys).chain(upstreams).filter_map(|(key, file)| {
        let error = File::open(file).err()?;
        Some(format!("proxy.{key}: cannot read {}: {error}", file.display()))
    })
}

fn report(settings: &Settings) -> serde_json::Value {
    let limits: Vec<_> = settings
        .limits
        .iter()
        .map(|(target, contract)| {
            json!({
                "target": target.to_string(),
                "rate": RateText(contract.limit.rate),
                "burst": contract.limit.burst,
                "unit": UnitWord::from(contract.unit),
                "discipline": DisciplineWord::from(contract.discipline),
                "mode": ModeWord::from(contract.mode),
            })
        })
        .collect();
    let mut report = json!({ "ok": true, "warnings": warnings(settings), "limits": limits });
    if let Some(proxy) = &settings.proxy {
        let routes: Vec<_> = proxy.routes.iter().map(|route| &route.name).collect();
        let listeners: Vec<_> = proxy.listeners.iter().map(|listener| listener.address.to_string()).collect();
        let tenants: Vec<_> = proxy.tenants.named.iter().map(|tenant| &tenant.name).collect();
        report["proxy"] = json!({
            "mode": proxy.limits.mode,
            "listeners": listeners,
            "routes": routes,
            "tenants_by": proxy.tenants.by.to_string(),
            "tenants": tenants,
        });
    }
    if let Some(steer) = &settings.steer {
        let brokers: Vec<_> = steer.nodes.iter().map(|node| &node.name).collect();
        report["steer"] = json!({ "listen": steer.listen, "brokers": brokers });
    }
    if let Some(control) = &settings.control {
        let nodes: Vec<_> = control.nodes.iter().map(|node| &node.name).collect();
        let topics: Vec<_> = control
            .topics
            .iter()
            .map(|topic| {
                json!({
                    "name": topic.name,
                    "rate": RateText(topic.limit.rate),
                    "burst": topic.limit.burst,
                    "slo": topic.slo,
                    "planner": topic.planner,
                    "principles": topic.policy,
                })
            })
            .collect();
        report["control"] = json!({ "listen": control.listen.to_string(), "nodes": nodes, "topics": topics });
    }
    if let Some(shaper) = &settings.shaper {
        report["shaper"] = json!({ "devices": shaper.devices.iter().map(shaped).collect::<Vec<_>>() });
    }
    report
}

fn shaped(device: &Device) -> serde_json::Value {
    let class = |class: &Class| json!({ "name": class.name, "rate": class.rate, "ceil": class.ceil.or(class.rate) });
    json!({
        "name": device.name,
        "namespace": device.namespace,
        "mode": device.mode,
        "rate": device.rate,
        "classes": device.classes.iter().map(class).collect::<Vec<_>>(),
    })
}
