//! Whose connection or request it is.

use hashbrown::{HashMap, HashSet};

use super::checked::Config;
use super::words::{TenantBy, Unknown};
use crate::machine::neighbours::Tenant;

/// Bytes of a tenant's name; what is longer is cut. A host name has 253 at most.
pub const LONGEST_NAME: usize = 253;

/// Tells tenants apart. Names that the file gives are found by what they match; every other that something in it knows is its
/// own, and those that nothing knows are one, unless the file says otherwise: names cost nothing to make up.
#[derive(Clone, Debug)]
pub struct Tenancy {
    by: TenantBy,
    /// A route has a tenant of its own.
    by_route: bool,
    /// Name of the tenant by what it is known by.
    exact: HashMap<String, String, foldhash::fast::RandomState>,
    /// By what stands behind `*`, as in `.example.com`.
    suffix: HashMap<String, String, foldhash::fast::RandomState>,
    /// Hosts that something names.
    known: Names,
    /// Whether those that nothing names are one tenant.
    together: bool,
    /// The certificates, by their places, that are for a name.
    certificates: Certified,
}

/// Which certificates are for which names.
#[derive(Clone, Debug, Default)]
struct Certified {
    exact: HashMap<String, Vec<usize>, foldhash::fast::RandomState>,
    /// By what stands behind `*`; for one label below.
    below: HashMap<String, Vec<usize>, foldhash::fast::RandomState>,
}

impl Certified {
    fn insert(&mut self, name: &str, certificate: usize) {
        let all = match name.strip_prefix('*') {
            Some(rest) => self.below.entry(rest.to_owned()).or_default(),
            None => self.exact.entry(name.to_owned()).or_default(),
        };
        all.push(certificate);
    }

    /// Certificates that cover `name`: those for just this name, and those for all below another one.
    fn lists(&self, name: &str) -> impl Iterator<Item = &Vec<usize>> {
        let exact = self.exact.get(name);
        let below = name.find('.').and_then(|dot| self.below.get(&name[dot..]));
        exact.into_iter().chain(below)
    }

    fn of(&self, name: &str) -> impl Iterator<Item = usize> {
        self.lists(name).flatten().copied()
    }

    /// Whether a certificate that a client gets that asks for `sni` is for `host` too. Of those with different kinds of
    /// keys it gets the one that it can check; which, is not asked here.
    fn covers(&self, sni: &str, host: &str) -> bool {
        // The first of all is for names that none is for.
        let served = self.lists(sni).next().map_or(&[0][..], Vec::as_slice);
        self.of(host).any(|certificate| served.contains(&certificate))
    }
}

/// Hosts, and what stands behind the `*` of others.
#[derive(Clone, Debug, Default)]
struct Names {
    exact: HashSet<String, foldhash::fast::RandomState>,
    suffix: HashSet<String, foldhash::fast::RandomState>,
}

impl Names {
    fn insert(&mut self, name: &str) {
        match name.strip_prefix('*').filter(|rest| rest.starts_with('.')) {
            Some(rest) => self.suffix.insert(rest.to_owned()),
            None => self.exact.insert(name.to_owned()),
        };
    }

    fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.suffix.is_empty()
    }
}

/// What may stand behind a `*`, the longest first.
fn suffixes(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('.').filter(|(at, _)| *at > 0).map(|(at, _)| &name[at..])
}

/// What is known of a request.
#[derive(Clone, Copy, Debug)]
pub struct Traits<'a> {
    /// The name of the connection's `ClientHello`, in lower case.
    pub sni: Option<&'a str>,
    /// In lower case, without a port.
    pub host: &'a str,
    /// The route's name and the tenant that it fixes, once there is a route.
    pub route: Option<(&'a str, Option<&'a str>)>,
    /// The value of the header that tells tenants apart, if one does and it is there.
    pub header: Option<&'a str>,
}

/// What tells tenants apart, before it is looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key<'a> {
    /// A trait of the request, or the name itself.
    pub told: &'a str,
    /// What it is.
    pub kind: KeyKind,
}

/// What a [`Key`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KeyKind {
    /// The tenant's name: a route says it.
    Name,
    /// A host, which a client can make up.
    #[default]
    Host,
    /// A route's name, or a header's value.
    Other,
}

/// A tenant as it is found, and how it shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claimant<'a> {
    /// Its name.
    pub name: &'a str,
    /// With whom it shares what it gets.
    pub standing: Standing,
}

/// With whom a tenant shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// With nobody: the configuration, or a certificate, names it.
    Own,
    /// With all names that its source says, since anybody can make it up: it is below a wildcard, or unknown names are apart.
    OfSource,
}

impl Tenancy {
    /// As `config` says, whose certificates are for the names in `certified`, `*.example.com` among them, each with the
    /// place of its certificate.
    #[must_use]
    pub fn new<'a>(config: &Config, certified: impl IntoIterator<Item = (&'a str, usize)>) -> Self {
        let mut certificates = Certified::default();
        let mut names = Names::default();
        for (name, certificate) in certified {
            certificates.insert(name, certificate);
            names.insert(name);
        }
        let (mut exact, mut suffix) = (HashMap::default(), HashMap::default());
        for tenant in &config.tenants.named {
            for matched in &tenant.matches {
                match matched.strip_prefix('*').filter(|rest| rest.starts_with('.')) {
                    Some(rest) => suffix.insert(rest.to_owned(), tenant.name.clone()),
                    None => exact.insert(matched.clone(), tenant.name.clone()),
                };
            }
        }
        let by_route = config.routes.iter().any(|route| route.tenant.is_some());
        let known = known(config, names);
        let together = match config.tenants.unknown {
            Some(unknown) => unknown == Unknown::Together,
            None => !known.is_empty(),
        };
        Self { by: config.tenants.by.clone(), by_route, exact, suffix, known, together, certificates }
    }

    /// The header that tells tenants apart, in lower case.
    #[must_use]
    pub fn header(&self) -> Option<&str> {
        match &self.by {
            TenantBy::Header(name) => Some(name),
            _ => None,
        }
    }

    /// Whose connection it is, known before any cryptography: by the name of its `ClientHello`, in lower case. Requests
    /// on it may be others' if something else tells tenants apart.
    #[must_use]
    pub fn of_hello<'a>(&'a self, sni: Option<&'a str>) -> Claimant<'a> {
        self.named(sni.unwrap_or("-"), true)
    }

    /// Whether some certificate is for `sni`, in lower case; `None` if none names any host.
    #[must_use]
    pub fn is_certified(&self, sni: &str) -> Option<bool> {
        let Certified { exact, below } = &self.certificates;
        let names_any = !exact.is_empty() || !below.is_empty();
        names_any.then(|| self.certificates.of(sni).next().is_some())
    }

    /// Whether a request for `host` came to the wrong connection, both names in lower case: the certificate that was served for
    /// `sni` is not for that host, and the two are not the same tenant's. Else the one would be charged for the connection, and
    /// the other's service be used. Clients that share a connection among the names of one certificate may.
    ///
    /// Source: RFC 9110, sections 7.4 and 15.5.20.
    #[must_use]
    pub fn is_misdirected(&self, sni: &str, host: &str) -> bool {
        !host.is_empty()
            && sni != host
            && !self.certificates.covers(sni, host)
            && self.named(sni, true).name != self.named(host, true).name
    }

    /// Whose request it is if its host, in lower case, is all that tells: not so if routes or headers may.
    #[must_use]
    pub fn of_host<'a>(&'a self, host: &'a str) -> Option<&'a str> {
        let tells = matches!(self.by, TenantBy::Sni | TenantBy::Host) && !self.by_route;
        tells.then(|| self.of_request(Traits { sni: None, host, route: None, header: None }).name)
    }

    /// Whose request it is.
    #[must_use]
    pub fn of_request<'a>(&'a self, traits: Traits<'a>) -> Claimant<'a> {
        self.claimant(self.key(traits))
    }

    /// What tells whose request it is. Equal keys are the same tenant's.
    #[must_use]
    pub fn key<'a>(&self, traits: Traits<'a>) -> Key<'a> {
        if let Some((_, Some(tenant))) = traits.route {
            return Key { told: tenant, kind: KeyKind::Name };
        }
        let other = match self.by {
            TenantBy::Route => traits.route.map(|(name, _)| name),
            TenantBy::Header(_) => traits.header.filter(|value| !value.is_empty()),
            TenantBy::Sni | TenantBy::Host => None,
        };
        if let Some(told) = other {
            return Key { told, kind: KeyKind::Other };
        }
        // A client may use one connection for several names of a certificate: the host of each request decides.
        let told = if traits.host.is_empty() { traits.sni.unwrap_or("-") } else { traits.host };
        Key { told, kind: KeyKind::Host }
    }

    /// The tenant whose key this is.
    #[must_use]
    pub fn claimant<'a>(&'a self, key: Key<'a>) -> Claimant<'a> {
        match key.kind {
            KeyKind::Name => Claimant { name: key.told, standing: Standing::Own },
            kind => self.named(key.told, kind == KeyKind::Host),
        }
    }

    fn named<'a>(&'a self, key: &'a str, is_host: bool) -> Claimant<'a> {
        if let Some(name) = self.exact.get(key) {
            return Claimant { name, standing: Standing::Own };
        }
        if !self.suffix.is_empty()
            && let Some(name) = suffixes(key).find_map(|suffix| self.suffix.get(suffix))
        {
            return Claimant { name, standing: Standing::Own };
        }
        let mut standing = Standing::Own;
        if is_host && key != "-" && !self.known.exact.contains(key) {
            if self.together && !suffixes(key).any(|suffix| self.known.suffix.contains(suffix)) {
                // They share the place of those that there is no room for.
                return Claimant { name: Tenant::OTHER_NAME, standing };
            }
            standing = Standing::OfSource;
        }
        // "other" is the place of those that there is no room for, and nobody's to claim.
        Claimant { name: if key == Tenant::OTHER_NAME { "other." } else { bounded(key) }, standing }
    }
}

/// The hosts in `names` and those that something in `config` names.
fn known(config: &Config, mut names: Names) -> Names {
    config.tenants.named.iter().flat_map(|tenant| &tenant.matches).for_each(|name| names.insert(name));
    config.routes.iter().filter_map(|route| route.host.as_deref()).for_each(|name| names.insert(name));
    let rules = config.sni.iter().flat_map(|rule| rule.names.iter().chain(&rule.aliases));
    rules.for_each(|name| names.insert(name));
    names
}

fn bounded(key: &str) -> &str {
    let mut end = key.len().min(LONGEST_NAME);
    while !key.is_char_boundary(end) {
        end -= 1;
    }
    &key[..end]
}

#[cfg(test)]
mod tests {
    use tidegate_runtime::config::Document;

    use super::*;

    fn tenancy(text: &str) -> Tenancy {
        certified(text, &[])
    }

    fn certified(text: &str, names: &[&'static str]) -> Tenancy {
        let names = names.iter().copied().zip(0..);
        Tenancy::new(&Config::from_document(&Document::new("t.toml", text), 1).unwrap(), names)
    }

    fn told_apart(by: &str) -> String {
        let from = if by.starts_with("header:") { "header_from = [\"127.0.0.0/8\"]\n" } else { "" };
        format!("[proxy.tenants]\nby = \"{by}\"\n{from}")
    }

    const REQUEST: Traits<'static> =
        Traits { sni: Some("a.example"), host: "b.example", route: Some(("shop", None)), header: Some("gold") };

    #[test]
    fn each_way_of_telling_them_apart_looks_at_its_own_trait() {
        for (by, whose) in [("sni", "b.example"), ("host", "b.example"), ("route", "shop"), ("header:x-plan", "gold")] {
            let tenancy = tenancy(&told_apart(by));
            assert_eq!(tenancy.of_request(REQUEST).name, whose);
            let fixed = Traits { route: Some(("shop", Some("fixed"))), ..REQUEST };
            assert_eq!(tenancy.of_request(fixed).name, "fixed", "a route's own tenant comes first");
        }
    }

    #[test]
    fn the_host_alone_tells_unless_routes_or_headers_may() {
        for (by, tells) in [("sni", true), ("host", true), ("route", false), ("header:x-plan", false)] {
            let tenancy = tenancy(&told_apart(by));
            assert_eq!(tenancy.of_host("b.example"), tells.then_some("b.example"), "{by}");
        }
        let upstream = "[[proxy.upstream]]\nname = \"s\"\nservers = [\"127.0.0.1:1\"]\n";
        let route = "[[proxy.route]]\nupstream = \"s\"\ntenant = \"acme\"\n";
        assert_eq!(tenancy(&format!("{upstream}{route}")).of_host("b.example"), None);
    }

    #[test]
    fn what_is_missing_falls_back_to_the_host() {
        let bare = Traits { sni: None, host: "b.example", route: None, header: None };
        for by in ["sni", "host", "route", "header:x-plan"] {
            let tenancy = tenancy(&told_apart(by));
            assert_eq!(tenancy.of_request(bare).name, "b.example", "{by}");
            assert_eq!(tenancy.of_request(Traits { host: "", ..bare }).name, "-", "{by}");
            assert_eq!(
                tenancy.of_request(Traits { host: "", sni: Some("a.example"), ..bare }).name,
                "a.example",
                "{by}"
            );
        }
    }

    #[test]
    fn a_tenant_may_be_known_by_many_names() {
        let tenancy = tenancy(
            "[proxy.tenants]\nunknown = \"apart\"\n\
             [[proxy.tenant]]\nname = \"acme\"\nweight = 3\nmatch = [\"acme.example\", \"*.acme.example\"]\n\
             [[proxy.tenant]]\nname = \"b.example\"\n",
        );
        for sni in ["acme.example", "www.acme.example", "a.b.acme.example"] {
            assert_eq!(tenancy.of_hello(Some(sni)).name, "acme", "{sni}");
        }
        assert_eq!(tenancy.of_hello(Some("b.example")).name, "b.example");
        assert_eq!(tenancy.of_hello(Some("notacme.example")).name, "notacme.example");
        assert_eq!(tenancy.of_hello(None).name, "-");
        assert_eq!(tenancy.of_hello(Some("other")).name, "other.", "nobody takes the place of those without a name");
    }

    #[test]
    fn hosts_that_nothing_knows_are_one_tenant_if_anything_knows_some() {
        let upstream = "[[proxy.upstream]]\nname = \"s\"\nservers = [\"127.0.0.1:1\"]\n";
        let route = format!("{upstream}[[proxy.route]]\nupstream = \"s\"\nhost = \"*.shop.example\"\n");
        let tenant = "[[proxy.tenant]]\nname = \"acme\"\nmatch = [\"acme.example\"]\n";
        for (text, names, known) in [
            (String::new(), &["a.example", "*.b.example"][..], &["a.example", "x.b.example"][..]),
            (route.clone(), &[], &["a.shop.example"]),
            (tenant.to_owned(), &[], &["acme.example"]),
        ] {
            let tenancy = certified(&text, names);
            for name in known {
                assert_eq!(tenancy.of_hello(Some(name)).name, tenancy.named(name, false).name, "{name}");
                assert_ne!(tenancy.of_request(Traits { host: name, sni: None, ..REQUEST }).name, "other", "{name}");
            }
            for name in ["made-up-1.example", "b.example.made-up", "shop.example"] {
                assert_eq!(tenancy.of_hello(Some(name)).name, "other", "{name}");
            }
            assert_eq!(tenancy.of_hello(None).name, "-");
            let apart = certified(&format!("[proxy.tenants]\nunknown = \"apart\"\n{text}"), names);
            assert_eq!(apart.of_hello(Some("made-up-1.example")).name, "made-up-1.example");
        }
        assert_eq!(tenancy("").of_hello(Some("anybody.example")).name, "anybody.example", "nothing is known");
        let plans = tenancy(&format!("{}{tenant}", told_apart("header:x-plan")));
        assert_eq!(plans.of_request(REQUEST).name, "gold", "that is no host");
    }

    #[test]
    fn a_host_that_neither_the_certificate_nor_the_tenant_of_the_hello_covers_is_misdirected() {
        let tenant = "[[proxy.tenant]]\nname = \"acme\"\nmatch = [\"acme.example\", \"acme.test\"]\n";
        let config = Config::from_document(&Document::new("t.toml", tenant), 1).unwrap();
        let mut names =
            vec![("a.example", 0), ("b.example", 0), ("*.c.example", 0), ("c.c.example", 1), ("acme.example", 2)];
        // Two kinds of keys, of which the second is for more names.
        names.extend([("d.example", 3), ("d.example", 4), ("e.example", 4)]);
        let tenancy = Tenancy::new(&config, names);
        for (sni, host) in [
            ("a.example", "a.example"),
            ("a.example", ""),
            ("a.example", "b.example"),
            ("b.example", "x.c.example"),
            ("a.example", "c.c.example"),
            ("acme.example", "acme.test"),
            ("nobody.example", "a.example"),
            ("nobody.example", "someone.example"),
            ("d.example", "e.example"),
        ] {
            assert!(!tenancy.is_misdirected(sni, host), "{sni} {host}");
        }
        for (sni, host) in [
            ("a.example", "acme.example"),
            ("c.c.example", "x.c.example"),
            ("a.example", "x.y.c.example"),
            ("acme.example", "a.example"),
            ("a.example", "nobody.example"),
        ] {
            assert!(tenancy.is_misdirected(sni, host), "{sni} {host}");
        }
        let apart = Tenancy::new(&Config::from_document(&Document::new("t.toml", ""), 1).unwrap(), []);
        assert!(apart.is_misdirected("a.example", "b.example"));
    }

    #[test]
    fn names_that_anybody_can_make_up_share_what_their_source_gets() {
        let upstream = "[[proxy.upstream]]\nname = \"s\"\nservers = [\"127.0.0.1:1\"]\n";
        let route = "[[proxy.route]]\nupstream = \"s\"\nhost = \"shop.example\"\n";
        let tenant = "[[proxy.tenant]]\nname = \"acme\"\nmatch = [\"*.acme.example\"]\n";
        let tenancy = certified(&format!("{upstream}{route}{tenant}"), &["*.c.example", "d.example"]);
        let standing = |sni| tenancy.of_hello(sni).standing;
        for own in ["shop.example", "d.example", "x.acme.example", "nobody.example"] {
            assert_eq!(standing(Some(own)), Standing::Own, "{own}");
        }
        assert_eq!(standing(None), Standing::Own);
        assert_eq!(standing(Some("x.c.example")), Standing::OfSource);
        let apart = tenancy_apart();
        assert_eq!(apart.of_hello(Some("nobody.example")).standing, Standing::OfSource);
        let plans = self::tenancy(&told_apart("header:x-plan"));
        assert_eq!(plans.of_request(REQUEST).standing, Standing::Own, "whoever sets the header is listed");
    }

    fn tenancy_apart() -> Tenancy {
        certified("[proxy.tenants]\nunknown = \"apart\"\n", &["d.example"])
    }

    #[test]
    fn long_names_are_cut_between_letters() {
        let tenancy = tenancy(&told_apart("header:x-plan"));
        let long = "é".repeat(200);
        let name = tenancy.of_request(Traits { header: Some(&long), ..REQUEST }).name;
        assert_eq!(name.len(), 252);
    }
}
