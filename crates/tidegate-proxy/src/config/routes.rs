//! Which route a request takes.
//!
//! The most specific one: a host before a `*.` pattern before every host, a longer pattern before a shorter one, then a
//! longer path before a shorter one, then a list of methods before every method. The order in the file says nothing.

use hashbrown::HashMap;
use http::Method;

use super::checked::{Config, Route};
use super::paths::{self, PlainPath};

/// Routes by host, the most specific first.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    by_host: HashMap<String, Vec<Entry>, foldhash::fast::RandomState>,
    /// By what stands behind `*`, as in `.example.com`.
    by_suffix: HashMap<String, Vec<Entry>, foldhash::fast::RandomState>,
    anywhere: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    path: String,
    methods: Vec<Method>,
    /// Index in [`Config::routes`].
    route: usize,
}

impl Routes {
    /// Those of `config`.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let mut routes = Self::default();
        for (index, route) in config.routes.iter().enumerate() {
            let entry = Entry { path: route.path.clone(), methods: route.methods.clone(), route: index };
            match route.host.as_deref().map(|host| (host, host.strip_prefix('*'))) {
                Some((_, Some(suffix))) => routes.by_suffix.entry(suffix.to_owned()).or_default().push(entry),
                Some((host, None)) => routes.by_host.entry(host.to_owned()).or_default().push(entry),
                None => routes.anywhere.push(entry),
            }
        }
        let every = routes.by_host.values_mut().chain(routes.by_suffix.values_mut());
        for entries in every.chain(std::iter::once(&mut routes.anywhere)) {
            entries.sort_by_key(|entry| (std::cmp::Reverse(entry.path.len()), entry.methods.is_empty(), entry.route));
        }
        routes
    }

    /// The index in [`Config::routes`] of the route that a request takes, if there is one. `host` is in lower case and
    /// has no port. O(labels of the host + routes of the hosts that match).
    #[must_use]
    pub fn find(&self, host: &str, path: &PlainPath<'_>, method: &Method) -> Option<usize> {
        let path = path.as_str();
        let exact = self.by_host.get(host).and_then(|entries| first(entries, path, method));
        exact.or_else(|| self.by_pattern(host, path, method)).or_else(|| first(&self.anywhere, path, method))
    }

    fn by_pattern(&self, host: &str, path: &str, method: &Method) -> Option<usize> {
        if self.by_suffix.is_empty() {
            return None;
        }
        // The leftmost dot leaves the longest suffix. A pattern stands for one label at least.
        let suffixes = host.match_indices('.').filter(|(at, _)| *at > 0).map(|(at, _)| &host[at..]);
        suffixes.filter_map(|suffix| self.by_suffix.get(suffix)).find_map(|entries| first(entries, path, method))
    }
}

fn first(entries: &[Entry], path: &str, method: &Method) -> Option<usize> {
    let fits =
        |entry: &&Entry| (entry.methods.is_empty() || entry.methods.contains(method)) && is_below(path, &entry.path);
    entries.iter().find(fits).map(|entry| entry.route)
}

/// Whether `path` is `prefix` or below it: `/api` holds `/api`, `/api/x` and, with a parameter, `/api;x`, not `/apix`.
fn is_below(path: &str, prefix: &str) -> bool {
    let Some(rest) = path.strip_prefix(prefix) else { return false };
    rest.is_empty() || prefix.ends_with('/') || rest.starts_with(['/', ';'])
}

impl Route {
    /// The path that the upstream gets for `path`, which this route took: with `rewrite` in the place of its prefix.
    #[must_use]
    pub fn rewritten(&self, path: &str) -> Option<String> {
        let rewrite = self.rewrite.as_deref()?;
        // The prefix may have come in another form. What is behind it goes on as it came.
        let rest = path.strip_prefix(&self.path).or_else(|| paths::behind(path, self.path.len()))?;
        // Exactly one slash where the two parts meet, whichever of them brings it.
        let meet = match (rewrite.ends_with('/'), rest.starts_with('/')) {
            (true, true) => return Some(format!("{rewrite}{}", &rest[1..])),
            (false, false) if !rest.is_empty() && !rest.starts_with(';') => "/",
            _ => "",
        };
        Some(format!("{rewrite}{meet}{rest}"))
    }
}

#[cfg(test)]
mod tests {
    use tidegate_runtime::config::Document;

    use super::*;

    fn config(routes: &str) -> Config {
        let text = format!("[[proxy.upstream]]\nname = \"u\"\nservers = [\"127.0.0.1:1\"]\n{routes}");
        Config::from_document(&Document::new("t.toml", text), 1).unwrap()
    }

    fn route(name: &str, keys: &str) -> String {
        format!("[[proxy.route]]\nname = \"{name}\"\nupstream = \"u\"\n{keys}\n")
    }

    #[test]
    fn the_most_specific_route_wins_whatever_their_order() {
        let mut parts = [
            route("any", ""),
            route("any-api", "path = \"/api\""),
            route("host", "host = \"Shop.example\""),
            route("host-api", "host = \"shop.example\"\npath = \"/api\""),
            route("host-api-post", "host = \"shop.example\"\npath = \"/api\"\nmethods = [\"POST\"]"),
            route("wild", "host = \"*.example\""),
            route("wilder", "host = \"*.a.example\""),
        ];
        for _ in 0..parts.len() {
            parts.rotate_left(1);
            let config = config(&parts.concat());
            let routes = Routes::new(&config);
            let find = |method: Method, host: &str, path: &str| {
                routes
                    .find(host, &PlainPath::new(path).unwrap(), &method)
                    .map(|route| config.routes[route].name.as_str())
            };
            assert_eq!(find(Method::GET, "elsewhere", "/"), Some("any"));
            assert_eq!(find(Method::GET, "elsewhere", "/api/x"), Some("any-api"));
            assert_eq!(find(Method::GET, "elsewhere", "/api;v=1/x"), Some("any-api"));
            assert_eq!(find(Method::GET, "elsewhere", "/apix"), Some("any"));
            assert_eq!(find(Method::GET, "shop.example", "/"), Some("host"));
            assert_eq!(find(Method::GET, "shop.example", "/api"), Some("host-api"));
            assert_eq!(find(Method::POST, "shop.example", "/api"), Some("host-api-post"));
            assert_eq!(find(Method::GET, "b.example", "/"), Some("wild"));
            assert_eq!(find(Method::GET, "c.a.example", "/"), Some("wilder"));
            assert_eq!(find(Method::GET, "a.example", "/"), Some("wild"));
            assert_eq!(find(Method::GET, ".example", "/"), Some("any"));
        }
    }

    #[test]
    fn without_a_route_for_it_a_request_has_none() {
        let routes = Routes::new(&config(&route("a", "host = \"a.example\"\npath = \"/x/\"")));
        let find = |host, path| routes.find(host, &PlainPath::new(path).unwrap(), &Method::GET);
        assert_eq!(find("b.example", "/x/"), None);
        assert_eq!(find("a.example", "/x"), None);
        assert_eq!(find("a.example", "/x/"), Some(0));
    }

    #[test]
    fn a_rewrite_stands_in_the_place_of_the_prefix() {
        let rewritten = |path: &str, rewrite: &str, of: &str| {
            let keys = format!("path = \"{path}\"\nrewrite = \"{rewrite}\"");
            config(&route("a", &keys)).routes[0].rewritten(of).unwrap()
        };
        assert_eq!(rewritten("/api", "/v2", "/api/x"), "/v2/x");
        assert_eq!(rewritten("/api", "/v2", "/api"), "/v2");
        assert_eq!(rewritten("/api", "/v2", "/api;v=1/x"), "/v2;v=1/x");
        assert_eq!(rewritten("/api/", "/", "/api/x"), "/x");
        assert_eq!(rewritten("/api/", "/v2", "/api/x"), "/v2/x");
        assert_eq!(rewritten("/api", "/", "/api/x"), "/x");
        assert_eq!(rewritten("/api", "/", "/api"), "/");
        assert_eq!(rewritten("/api", "/v2", "/%61pi/%78//y"), "/v2/%78//y");
        assert_eq!(rewritten("/api/", "/v2", "//./api//x"), "/v2/x");
        assert_eq!(config(&route("a", "")).routes[0].rewritten("/x"), None);
    }
}
