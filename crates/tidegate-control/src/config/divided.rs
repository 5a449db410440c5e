//! The proxies, and the limits that they divide.

use std::collections::BTreeSet;

use tidegate_core::limit::Limit;
use tidegate_runtime::config::ConfigError;

use super::check::{Place, adapt};
use super::section::{LimitSection, ProxySection};
use super::{DividedLimit, LENDERS_MAX, LIMITS_MAX, Lend, NODES_MAX, Proxy};

/// The proxies of the section.
pub(super) fn proxies(place: &Place<'_>, sections: Vec<ProxySection>) -> Result<Vec<Proxy>, ConfigError> {
    place.at_most("proxies", sections.len(), NODES_MAX)?;
    let (mut names, mut admins) = (BTreeSet::new(), BTreeSet::new());
    let mut proxies = Vec::with_capacity(sections.len());
    for (index, ProxySection { name, admin, lend, token_file }) in sections.into_iter().enumerate() {
        let place = place.below(format_args!("proxies[{index}]"));
        place.name("name", &name)?;
        let admin = place.base("admin", &admin)?;
        if !names.insert(name.clone()) {
            return Err(place.problem("name", format_args!("{name} is there twice"), "give each proxy its own name"));
        }
        if !admins.insert(admin.clone()) {
            let remedy = "name each proxy once: its parts would be counted twice";
            return Err(place.problem("admin", format_args!("{admin} is there twice"), remedy));
        }
        let lend = lend.as_deref().map(|text| {
            text.parse().map_err(|_| {
                let remedy = "expected the address:port of its proxy.lend_address, such as \"10.0.0.1:4157\"";
                place.problem("lend", format_args!("found {text:?}"), remedy)
            })
        });
        proxies.push(Proxy { name, admin, lend: lend.transpose()?, token_file });
    }
    Ok(proxies)
}

/// The limits of the section, of which each of the proxies gets a part.
pub(super) fn limits(
    place: &Place<'_>,
    sections: Vec<LimitSection>,
    proxies: &[Proxy],
) -> Result<Vec<DividedLimit>, ConfigError> {
    place.at_most("limit", sections.len(), LIMITS_MAX)?;
    let mut names = BTreeSet::new();
    let mut limits = Vec::with_capacity(sections.len());
    for (index, section) in sections.into_iter().enumerate() {
        let place = place.below(format_args!("limit[{index}]"));
        let limit = limit(&place, section, proxies)?;
        if !names.insert(limit.name.clone()) {
            let found = format_args!("{} is there twice", limit.name);
            return Err(place.problem("route", found, "keep one of them"));
        }
        limits.push(limit);
    }
    Ok(limits)
}

fn limit(place: &Place<'_>, section: LimitSection, proxies: &[Proxy]) -> Result<DividedLimit, ConfigError> {
    let LimitSection { route, sni, rate, burst, adapt: adapt_section, lend, on_store_loss } = section;
    let (kind, key, of) = match (route, sni) {
        (Some(route), None) => ("route", "route", route),
        (None, Some(sni)) => ("sni", "sni", sni.to_ascii_lowercase()),
        _ => {
            let remedy = "give route, the name of a [[proxy.route]], or sni, a name of a [[proxy.sni]]";
            return Err(place.problem("route", "not one of route and sni", remedy));
        }
    };
    let is_plain = |c: u8| c.is_ascii_graphic() && !b"\"\\".contains(&c);
    if of.is_empty() || of.len() > 253 || !of.bytes().all(is_plain) {
        let remedy = "expected the name as it stands in the proxies' files";
        return Err(place.problem(key, format_args!("found {of:?}"), remedy));
    }
    let many = proxies.len();
    if many == 0 {
        let remedy = "add proxies = [ { name = \"p1\", admin = \"http://10.0.0.1:4154\" } ] to [control]";
        return Err(place.problem(key, "there is no proxy to divide it among", remedy));
    }
    if rate.is_zero() {
        let remedy = "expected more than 0: to let nothing pass, set limit = 0 at the proxies";
        return Err(place.problem("rate", "found 0", remedy));
    }
    if burst < many as u64 {
        let remedy = format!("expected {many} or more: a proxy without a token of depth lets nothing pass");
        return Err(place.problem("burst", format_args!("found {burst}"), remedy));
    }
    if lend == Lend::On && (many > LENDERS_MAX || proxies.iter().any(|proxy| proxy.lend.is_none())) {
        let remedy =
            format!("give each proxy lend = \"ADDRESS:PORT\", its proxy.lend_address; {LENDERS_MAX} proxies at most");
        return Err(place.problem("lend", "not every proxy says where datagrams reach it", remedy));
    }
    Ok(DividedLimit {
        name: format!("{kind} {of}"),
        limit: Limit::new(rate, burst),
        adapt: adapt(&place.below("adapt"), &adapt_section)?,
        lend,
        on_store_loss,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_core::Rate;
    use tidegate_runtime::config::Document;

    use crate::config::{Config, OnStoreLoss};

    const PROXIES: &str = "[control]\nproxies = [ { name = \"a\", admin = \"http://h:1\" }, { name = \"b\", admin = \
                           \"http://h:2/\", token_file = \"t\" } ]\n[[control.limit]]\n";

    fn read(limit: &str) -> Result<Config, String> {
        Config::from_document(&Document::new("t.toml", format!("{PROXIES}{limit}"))).map_err(|error| error.to_string())
    }

    #[test]
    fn a_limit_is_of_a_route_or_a_name() {
        let config = read("route = \"shop\"\nrate = \"3k/s\"\nburst = 60\n").unwrap();
        let [limit] = &config.limits[..] else { panic!("one limit") };
        assert_eq!((limit.name.as_str(), limit.limit.rate, limit.limit.burst), ("route shop", Rate::per_s(3_000), 60));
        assert_eq!((limit.adapt.window, limit.on_store_loss), (Duration::from_secs(10), OnStoreLoss::Local));
        assert_eq!((config.proxies[1].admin.as_str(), config.warnings.len()), ("h:2", 0));
        let sni =
            "sni = \"Www.Example\"\nrate = 5\nburst = 2\non_store_loss = \"closed\"\nadapt = { window = \"3s\" }\n";
        let config = read(sni).unwrap();
        assert_eq!(config.limits[0].name, "sni www.example");
        assert_eq!(config.limits[0].on_store_loss, OnStoreLoss::Closed);
    }

    #[test]
    fn complaints_say_what_to_write() {
        let sound = "rate = \"3k/s\"\nburst = 60\n";
        for (limit, said) in [
            (sound.to_owned(), "not one of route and sni"),
            (format!("route = \"a\"\nsni = \"b\"\n{sound}"), "not one of route and sni"),
            (format!("route = \"a b\"\n{sound}"), "found \"a b\""),
            (format!("route = \"a\"\n{sound}").replace("60", "1"), "expected 2 or more"),
            (format!("route = \"a\"\nlend = \"on\"\n{sound}"), "not every proxy says where datagrams reach it"),
            (format!("route = \"a\"\n{sound}").replace("3k/s", "0/s"), "found 0"),
            (format!("route = \"a\"\n{sound}[[control.limit]]\nroute = \"a\"\n{sound}"), "is there twice"),
        ] {
            let error = read(&limit).unwrap_err();
            assert!(error.contains(said), "{limit}: {error}");
        }
        let none = "[control]\n[[control.limit]]\nroute = \"a\"\nrate = 1\nburst = 1\n";
        let error = Config::from_document(&Document::new("t.toml", none)).unwrap_err().to_string();
        assert!(error.contains("there is no proxy to divide it among"), "{error}");
    }
}
