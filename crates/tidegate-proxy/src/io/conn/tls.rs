//! Certificates by name, and what is spoken with clients.

use std::borrow::Cow;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};
use rustls::crypto::aws_lc_rs;
use rustls::server::{ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{SignatureAlgorithm, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::keys;
use super::ocsp::{self, Staple};
use super::tickets::SharedTickets;
use super::validity;
use crate::config::{Certificate, Config};
use crate::error::{OcspProblem, ProxyError};
use crate::io::conn::der::element;
use crate::io::request::date;

/// Every certificate, found by the name that a client asks for.
#[derive(Debug)]
pub(crate) struct Certificates {
    exact: HashMap<String, OfName, RandomState>,
    /// By what stands behind `*`, as in `.example.com`; for one label below.
    below: HashMap<String, OfName, RandomState>,
    /// All names, as they are written, each with the place of its certificate.
    names: Vec<(String, usize)>,
    /// For clients that name no host, or one that nobody has: the first, and those with the same names.
    first: OfName,
    expiries: Vec<Expiry>,
}

/// When a certificate ends, in seconds since 1970.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expiry {
    /// The file of its chain.
    pub file: String,
    /// Its own end.
    pub certificate: Option<u64>,
    /// That of the OCSP response that is stapled to it, if one is, and if it has one.
    pub staple: Option<u64>,
}

/// A certificate as clients get it.
#[derive(Debug)]
pub(crate) struct Served {
    plain: Arc<CertifiedKey>,
    /// With its OCSP response, until that is out of date.
    stapled: Option<(Arc<CertifiedKey>, Option<u64>)>,
}

/// The certificates that are for one name: of each kind of key the first, those before others that cost less to sign with.
#[derive(Debug, Default)]
struct OfName(Vec<Arc<Served>>);

impl OfName {
    /// False if there is one with this kind of key.
    fn add(&mut self, served: &Arc<Served>) -> bool {
        let is_first = !self.0.iter().any(|other| other.algorithm() == served.algorithm());
        if is_first {
            self.0.push(Arc::clone(served));
            self.0.sort_by_key(|served| rank(served.algorithm()));
        }
        is_first
    }

    /// The one that a client can check which takes these signatures.
    fn choose(&self, schemes: &[SignatureScheme]) -> Option<&Arc<Served>> {
        match &self.0[..] {
            [one] => Some(one),
            all => all.iter().find(|served| served.plain.key.choose_scheme(schemes).is_some()),
        }
    }
}

fn rank(algorithm: SignatureAlgorithm) -> u8 {
    match algorithm {
        SignatureAlgorithm::ECDSA => 0,
        SignatureAlgorithm::ED25519 => 1,
        _ => 2,
    }
}

impl Served {
    fn algorithm(&self) -> SignatureAlgorithm {
        self.plain.key.algorithm()
    }

    fn at(&self, now: u64) -> &Arc<CertifiedKey> {
        let stapled = self.stapled.as_ref().filter(|(_, until)| until.is_none_or(|until| now < until));
        stapled.map_or(&self.plain, |(stapled, _)| stapled)
    }
}

impl Certificates {
    /// Reads all files. A key that does not belong to its certificate is an error; what is out of date is served, and
    /// told in the log.
    pub(crate) fn load(all: &[Certificate]) -> Result<Arc<Self>, ProxyError> {
        let (exact, below) = (HashMap::default(), HashMap::default());
        let mut this = Self { exact, below, names: Vec::new(), first: OfName::default(), expiries: Vec::new() };
        let (mut warnings, mut names_of_first) = (Vec::new(), None);
        for (place, certificate) in all.iter().enumerate() {
            let key = read(certificate, &mut warnings)?;
            this.expiries.push(Expiry {
                file: certificate.cert.display().to_string(),
                certificate: key.plain.cert.first().and_then(|end| validity::end_of(end)),
                staple: key.stapled.as_ref().and_then(|(_, until)| *until),
            });
            let names = if certificate.names.is_empty() { names_of(&key.plain) } else { certificate.names.clone() };
            let key = Arc::new(key);
            let all: HashSet<_, RandomState> = names.iter().cloned().collect();
            for name in &all {
                let of_name = match name.strip_prefix('*') {
                    Some(rest) => this.below.entry(rest.to_owned()).or_default(),
                    None => this.exact.entry(name.clone()).or_default(),
                };
                if !of_name.add(&key) {
                    let cert = certificate.cert.display();
                    tracing::warn!(%cert, name, "not used: an earlier certificate is for this name, with a key of this kind");
                }
            }
            this.names.extend(names.into_iter().map(|name| (name, place)));
            if *names_of_first.get_or_insert_with(|| all.clone()) == all {
                this.first.add(&key);
            }
        }
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        Ok(Arc::new(this))
    }

    /// When they end, in the order of the configuration.
    pub(crate) fn expiries(&self) -> &[Expiry] {
        &self.expiries
    }

    /// The names that they are for, `*.example.com` among them, each with the place of its certificate.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, usize)> {
        self.names.iter().map(|(name, place)| (name.as_str(), *place))
    }

    /// A certificate for `name`, if there is one: if none is such that the client can check its signature, the client is
    /// told so.
    fn find(&self, name: &str, schemes: &[SignatureScheme]) -> Option<&Arc<Served>> {
        let below = || self.below.get(name.find('.').map(|dot| &name[dot..])?);
        let all = || self.exact.get(name).into_iter().chain(below());
        all().find_map(|of_name| of_name.choose(schemes)).or_else(|| all().next()?.0.first())
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let named = hello.server_name().and_then(|name| {
            let has_upper = name.bytes().any(|byte| byte.is_ascii_uppercase());
            let lower = if has_upper { Cow::Owned(name.to_ascii_lowercase()) } else { Cow::Borrowed(name) };
            self.find(&lower, hello.signature_schemes())
        });
        let first = || self.first.choose(hello.signature_schemes()).or(self.first.0.first());
        named.or_else(first).map(|served| Arc::clone(served.at(date::seconds())))
    }
}

/// What is out of date in the files of `config`, as far as they can be read, and does not keep a proxy from starting.
#[must_use]
pub fn certificate_warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    for certificate in &config.certificates {
        let chain = CertificateDer::pem_file_iter(&certificate.cert);
        if let Some(Ok(end)) = chain.ok().and_then(|mut chain| chain.next()) {
            // What keeps it from starting is not told here.
            drop(staple(certificate, &end, &mut warnings));
        }
    }
    warnings
}

/// What is to be stapled to a certificate; and warnings about both.
fn staple(
    Certificate { cert, ocsp, .. }: &Certificate,
    end: &CertificateDer<'_>,
    warnings: &mut Vec<String>,
) -> Result<Option<Staple>, OcspProblem> {
    let now = date::seconds();
    if let Some(until) = validity::end_of(end).filter(|until| *until <= now) {
        let (cert, until) = (cert.display(), date::text(until));
        warnings.push(format!("the certificate {cert} ended on {until}: clients refuse it"));
    }
    let Some(path) = ocsp else { return Ok(None) };
    let why = match ocsp::read(path, end) {
        Ok(Staple { until: Some(until), .. }) if until <= now => format!("ended on {}", date::text(until)),
        Ok(staple) => return Ok(Some(staple)),
        // It comes after its certificate.
        Err(OcspProblem::OtherCertificate) => "is about another certificate".to_owned(),
        Err(problem) => return Err(problem),
    };
    warnings.push(format!("the OCSP response {} {why}: nothing is stapled to {}", path.display(), cert.display()));
    Ok(None)
}

/// Reads the files of one.
pub(crate) fn read(certificate: &Certificate, warnings: &mut Vec<String>) -> Result<Served, ProxyError> {
    let unreadable = |path: &std::path::Path, source| ProxyError::Pem { path: path.to_owned(), source };
    let chain = CertificateDer::pem_file_iter(&certificate.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|source| unreadable(&certificate.cert, source))?;
    let key = PrivateKeyDer::from_pem_file(&certificate.key).map_err(|source| unreadable(&certificate.key, source))?;
    let provider = aws_lc_rs::default_provider();
    // This also says whether they belong together.
    let plain = CertifiedKey::from_der(chain, key.clone_key(), &provider)
        .and_then(|shared| Ok(CertifiedKey::new(shared.cert, keys::load(&key, &provider)?)))
        .map_err(|source| ProxyError::Certificate { path: certificate.cert.clone(), source })?;
    let found = plain.cert.first().map(|end| staple(certificate, end, warnings)).transpose();
    let found =
        found.map_err(|source| ProxyError::Ocsp { path: certificate.ocsp.clone().unwrap_or_default(), source })?;
    let stapled = found.flatten().map(|Staple { response, until }| {
        let (cert, key) = (plain.cert.clone(), Arc::clone(&plain.key));
        (Arc::new(CertifiedKey { cert, key, ocsp: Some(response) }), until)
    });
    Ok(Served { plain: Arc::new(plain), stapled })
}

/// The DNS names in a certificate.
fn names_of(key: &CertifiedKey) -> Vec<String> {
    let Some(end) = key.cert.first() else { return Vec::new() };
    let parsed = rustls::server::ParsedCertificate::try_from(end);
    parsed.map_or_else(|_| Vec::new(), |_| subject_alternative_names(end))
}

/// The `dNSName`s of the extension `subjectAltName`, in lower case.
///
/// A walk over the DER by hand: the object identifier 2.5.29.17 is found, and the octets behind it are read as a
/// sequence of tagged strings, of which tag 2 is a name (RFC 5280, section 4.2.1.6). rustls has checked the rest.
fn subject_alternative_names(der: &[u8]) -> Vec<String> {
    const OID: [u8; 5] = [0x06, 0x03, 0x55, 0x1d, 0x11];
    let Some(at) = der.windows(OID.len()).position(|window| window == OID) else { return Vec::new() };
    let mut rest = &der[at + OID.len()..];
    // An extension may say that it is critical.
    if rest.starts_with(&[0x01, 0x01]) {
        rest = rest.get(3..).unwrap_or_default();
    }
    let Some((0x04, octets, _)) = element(rest) else { return Vec::new() };
    let Some((0x30, mut names, _)) = element(octets) else { return Vec::new() };
    let mut found = Vec::new();
    while let Some((tag, value, behind)) = element(names) {
        if tag == 0x82
            && let Ok(name) = str::from_utf8(value)
        {
            found.push(name.to_ascii_lowercase());
        }
        names = behind;
    }
    found
}

/// For each listener what is spoken there, if TLS is. Without files of keys, session tickets are those that are `kept`, or
/// new ones.
pub(crate) fn server_configs(
    config: &Config,
    certificates: &Arc<Certificates>,
    kept: Option<Arc<dyn ProducesTickets>>,
) -> Result<Vec<Option<Arc<rustls::ServerConfig>>>, ProxyError> {
    let ticketer: Option<Arc<dyn ProducesTickets>> = if config.ticket_keys.is_empty() {
        kept.or_else(|| aws_lc_rs::Ticketer::new().ok())
    } else {
        Some(SharedTickets::load(&config.ticket_keys)?)
    };
    let one = |listener: &crate::config::Listener| {
        let policy = &listener.tls_policy;
        let builder = rustls::ServerConfig::builder_with_provider(Arc::new(policy.provider()));
        let mut server = builder
            .with_protocol_versions(policy.versions())
            .expect("the configuration has a suite and a group for each version")
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(certificates) as Arc<dyn ResolvesServerCert>);
        if listener.http2 {
            server.alpn_protocols.push(b"h2".to_vec());
        }
        if listener.http1 {
            server.alpn_protocols.push(b"http/1.1".to_vec());
        }
        if let Some(ticketer) = &ticketer {
            server.ticketer = Arc::clone(ticketer);
        }
        // Tickets hold the state, so the server keeps none. One is enough: each costs an encryption per handshake.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 1;
        server.max_early_data_size = 0;
        Arc::new(server)
    };
    Ok(config.listeners.iter().map(|listener| listener.tls.then(|| one(listener))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_staple_that_goes_out_of_date_while_it_is_served_is_left_out() {
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let chain = vec![made.cert.der().clone()];
        let plain = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).unwrap();
        let stapled = CertifiedKey { cert: plain.cert.clone(), key: Arc::clone(&plain.key), ocsp: Some(vec![1]) };
        let mut served = Served { plain: Arc::new(plain), stapled: Some((Arc::new(stapled), Some(100))) };
        assert!(served.at(99).ocsp.is_some() && served.at(100).ocsp.is_none());
        if let Some((_, until)) = &mut served.stapled {
            *until = None;
        }
        assert!(served.at(u64::MAX).ocsp.is_some(), "it does not say until when");
    }

    #[test]
    fn names_are_read_from_certificates() {
        let names = ["Shop.example".to_owned(), "*.b.example".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        assert_eq!(subject_alternative_names(made.cert.der()), ["shop.example", "*.b.example"]);
        assert!(subject_alternative_names(b"\x06\x03\x55\x1d\x11\x04\xff").is_empty());
    }
}
