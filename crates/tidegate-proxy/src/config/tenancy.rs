//! Whose connection or request it is.

use std::borrow::Cow;

use hashbrown::HashMap;

use super::checked::Config;
use super::words::TenantBy;

/// Bytes of a tenant's name; what is longer is cut. A host name has 253 at most.
pub const LONGEST_NAME: usize = 253;

/// Tells tenants apart. Names that the file gives are found by what they match; every other is its own.
#[derive(Clone, Debug)]
pub struct Tenancy {
    by: TenantBy,
    /// A route has a tenant of its own.
    by_route: bool,
    /// Name of the tenant by what it is known by.
    exact: HashMap<String, String, foldhash::fast::RandomState>,
    /// By what stands behind `*`, as in `.example.com`.
    suffix: HashMap<String, String, foldhash::fast::RandomState>,
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
    /// A route says the tenant's name.
    pub is_name: bool,
}

impl Tenancy {
    /// As `config` says.
    #[must_use]
    pub fn new(config: &Config) -> Self {
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
        Self { by: config.tenants.by.clone(), by_route, exact, suffix }
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
    pub fn of_hello<'a>(&'a self, sni: Option<&'a str>) -> Cow<'a, str> {
        self.named(sni.unwrap_or("-"))
    }

    /// Whose request it is if its host, in lower case, is all that tells: not so if routes or headers may.
    #[must_use]
    pub fn of_host<'a>(&'a self, host: &'a str) -> Option<Cow<'a, str>> {
        let tells = matches!(self.by, TenantBy::Sni | TenantBy::Host) && !self.by_route;
        tells.then(|| self.of_request(Traits { sni: None, host, route: None, header: None }))
    }

    /// Whose request it is.
    #[must_use]
    pub fn of_request<'a>(&'a self, traits: Traits<'a>) -> Cow<'a, str> {
        self.name(self.key(traits))
    }

    /// What tells whose request it is. Equal keys are the same tenant's.
    #[must_use]
    pub fn key<'a>(&self, traits: Traits<'a>) -> Key<'a> {
        if let Some((_, Some(tenant))) = traits.route {
            return Key { told: tenant, is_name: true };
        }
        let host = if traits.host.is_empty() { "-" } else { traits.host };
        let told = match self.by {
            TenantBy::Sni => traits.sni.unwrap_or(host),
            TenantBy::Host => host,
            TenantBy::Route => traits.route.map_or(host, |(name, _)| name),
            TenantBy::Header(_) => traits.header.filter(|value| !value.is_empty()).unwrap_or(host),
        };
        Key { told, is_name: false }
    }

    /// The name of the tenant whose key this is.
    #[must_use]
    pub fn name<'a>(&'a self, key: Key<'a>) -> Cow<'a, str> {
        if key.is_name { Cow::Borrowed(key.told) } else { self.named(key.told) }
    }

    fn named<'a>(&'a self, key: &'a str) -> Cow<'a, str> {
        if let Some(name) = self.exact.get(key) {
            return Cow::Borrowed(name);
        }
        if !self.suffix.is_empty() {
            let mut suffixes = key.match_indices('.').filter(|(at, _)| *at > 0).map(|(at, _)| &key[at..]);
            if let Some(name) = suffixes.find_map(|suffix| self.suffix.get(suffix)) {
                return Cow::Borrowed(name);
            }
        }
        // "other" is the place of those that there is no room for, and nobody's to claim.
        if key == "other" { Cow::Borrowed("other.") } else { Cow::Borrowed(bounded(key)) }
    }
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
        Tenancy::new(&Config::from_document(&Document::new("t.toml", text), 1).unwrap())
    }

    const REQUEST: Traits<'static> =
        Traits { sni: Some("a.example"), host: "b.example", route: Some(("shop", None)), header: Some("gold") };

    #[test]
    fn each_way_of_telling_them_apart_looks_at_its_own_trait() {
        for (by, whose) in [("sni", "a.example"), ("host", "b.example"), ("route", "shop"), ("header:x-plan", "gold")] {
            let tenancy = tenancy(&format!("[proxy.tenants]\nby = \"{by}\""));
            assert_eq!(tenancy.of_request(REQUEST), whose);
            let fixed = Traits { route: Some(("shop", Some("fixed"))), ..REQUEST };
            assert_eq!(tenancy.of_request(fixed), "fixed", "a route's own tenant comes first");
        }
    }

    #[test]
    fn the_host_alone_tells_unless_routes_or_headers_may() {
        for (by, tells) in [("sni", true), ("host", true), ("route", false), ("header:x-plan", false)] {
            let tenancy = tenancy(&format!("[proxy.tenants]\nby = \"{by}\""));
            assert_eq!(tenancy.of_host("b.example").as_deref(), tells.then_some("b.example"), "{by}");
        }
        let upstream = "[[proxy.upstream]]\nname = \"s\"\nservers = [\"127.0.0.1:1\"]\n";
        let route = "[[proxy.route]]\nupstream = \"s\"\ntenant = \"acme\"\n";
        assert_eq!(tenancy(&format!("{upstream}{route}")).of_host("b.example"), None);
    }

    #[test]
    fn what_is_missing_falls_back_to_the_host() {
        let bare = Traits { sni: None, host: "b.example", route: None, header: None };
        for by in ["sni", "host", "route", "header:x-plan"] {
            let tenancy = tenancy(&format!("[proxy.tenants]\nby = \"{by}\""));
            assert_eq!(tenancy.of_request(bare), "b.example", "{by}");
            assert_eq!(tenancy.of_request(Traits { host: "", ..bare }), "-", "{by}");
        }
    }

    #[test]
    fn a_tenant_may_be_known_by_many_names() {
        let tenancy = tenancy(
            "[[proxy.tenant]]\nname = \"acme\"\nweight = 3\nmatch = [\"acme.example\", \"*.acme.example\"]\n\
             [[proxy.tenant]]\nname = \"b.example\"\n",
        );
        for sni in ["acme.example", "www.acme.example", "a.b.acme.example"] {
            assert_eq!(tenancy.of_hello(Some(sni)), "acme", "{sni}");
        }
        assert_eq!(tenancy.of_hello(Some("b.example")), "b.example");
        assert_eq!(tenancy.of_hello(Some("notacme.example")), "notacme.example");
        assert_eq!(tenancy.of_hello(None), "-");
        assert_eq!(tenancy.of_hello(Some("other")), "other.", "nobody takes the place of those without a name");
    }

    #[test]
    fn long_names_are_cut_between_letters() {
        let tenancy = tenancy("[proxy.tenants]\nby = \"header:x-plan\"");
        let long = "é".repeat(200);
        let name = tenancy.of_request(Traits { header: Some(&long), ..REQUEST });
        assert_eq!(name.len(), 252);
    }
}
