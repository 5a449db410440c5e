//! Why a proxy does not start, or keeps its configuration.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a proxy does not start, or does not take another configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// A port cannot be had.
    #[error("cannot listen on {address}")]
    Listen {
        /// As configured.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A PEM file cannot be read, or is none.
    #[error("cannot read the certificate file {}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// A certificate and its key do not go together, or are of a kind that is not spoken.
    #[error("the certificate {} cannot be used", path.display())]
    Certificate {
        /// The file of the chain.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// The system trusts no authority, or its certificates cannot be read.
    #[error("the system has no certificates of authorities: install them, or name a file in proxy.upstream.tls.roots")]
    SystemRoots {
        /// What the system said, if anything.
        #[source]
        source: Option<rustls_native_certs::Error>,
    },
    /// A server's certificate cannot be for this name.
    #[error(
        "upstream {upstream} has the name {name} for TLS, which no certificate is for: give proxy.upstream.tls.name"
    )]
    ServerName {
        /// The upstream.
        upstream: String,
        /// From its key `tls.name`, or of its server.
        name: String,
    },
    /// An OCSP response cannot be stapled.
    #[error("cannot staple the OCSP response {}", path.display())]
    Ocsp {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: OcspProblem,
    },
    /// A key of session tickets cannot be used.
    #[error("cannot use the ticket key {}", path.display())]
    TicketKey {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: TicketKeyProblem,
    },
    /// The access log cannot be opened.
    #[error("cannot open the access log {}", path.display())]
    AccessLog {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The folder of large bodies cannot be used.
    #[error("cannot use the spool directory {}", path.display())]
    Spool {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread {
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Something changed that cannot change while it runs.
    #[error("{key} cannot change while the proxy runs: start it again")]
    NeedsRestart {
        /// The key in the file.
        key: &'static str,
    },
}

/// Why an OCSP response cannot be stapled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OcspProblem {
    /// The file cannot be read.
    #[error("it cannot be read")]
    Unreadable(#[source] io::Error),
    /// The file is larger than any.
    #[error("it is larger than {most} bytes")]
    TooLarge {
        /// Most bytes.
        most: usize,
    },
    /// The file is something else.
    #[error("it is no OCSP response in DER, as `openssl ocsp -respout` writes it")]
    Malformed,
    /// The authority did not answer the question.
    #[error("the authority answered with the error {status}: ask it again")]
    Failed {
        /// `responseStatus` of RFC 6960, section 4.2.1.
        status: u8,
    },
    /// The answer is about others.
    #[error("it is about another certificate")]
    OtherCertificate,
}

/// Why a key of session tickets cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TicketKeyProblem {
    /// The file cannot be read.
    #[error("it cannot be read")]
    Unreadable(#[source] io::Error),
    /// The file has another length.
    #[error("it has {bytes} bytes: expected 80 or 48, as `openssl rand 80` writes them")]
    Length {
        /// Of the file.
        bytes: usize,
    },
    /// Another file begins with the same name.
    #[error("its first 16 bytes, its name, are those of an earlier one: keep one of them")]
    Twice,
}
