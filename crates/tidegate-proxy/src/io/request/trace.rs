//! The trace that a request belongs to, and what of it the upstream is told.

use http::{HeaderMap, HeaderName, HeaderValue};
use rustls::crypto::aws_lc_rs;
use tidegate_core::Rng;
use tidegate_wire::trace_context::{Incoming, SpanId, TraceId, TraceParent};

use crate::config::Trace;
use crate::io::listen::settings::Settings;
use crate::io::listen::thread::Thread;
use crate::machine::sampling::Chance;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// This hop of a request, where the proxy is a span of the trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    /// What the upstream is told: the span is the proxy's.
    pub(crate) told: TraceParent,
    /// What the client said; without it the trace begins here.
    pub(crate) caller: Option<TraceParent>,
    /// What chance said about the line of a trace that begins here: its flag says the same.
    pub(crate) chance: Option<Chance>,
}

impl Hop {
    /// This hop of a request with these `headers`; `None` if they pass as they are.
    pub(crate) fn begin(thread: &Thread, settings: &Settings, headers: &HeaderMap) -> Option<Self> {
        if settings.config.trace == Trace::Pass {
            return None;
        }
        let caller = caller(headers);
        let rng = &mut *thread.rng.borrow_mut();
        let span = SpanId::of_random(rng.u64());
        if let Some(caller) = caller {
            return Some(Self { told: caller.child(span), caller: Some(caller), chance: None });
        }
        // Without a log nothing is recorded here.
        let log = settings.config.access_log.as_ref().filter(|_| thread.lines.borrow().is_some());
        let chance = log.map(|log| log.sampling.choose(rng));
        let trace = TraceId::of_random(u128::from(rng.u64()) << 64 | u128::from(rng.u64()));
        let told = TraceParent::root(trace, span, chance == Some(Chance::Chosen));
        Some(Self { told, caller: None, chance })
    }
}

/// Tells the upstream about `hop`, if there is one. What a vendor wrote about a trace that ended here is not passed on.
pub(crate) fn tell(hop: Option<&Hop>, headers: &mut HeaderMap) {
    let Some(Hop { told, caller, .. }) = hop else { return };
    let value = HeaderValue::from_bytes(&told.to_bytes()).expect("it is of hexadecimal digits and hyphens");
    headers.insert(TRACEPARENT, value);
    if caller.is_none() {
        headers.remove(TRACESTATE);
    }
}

/// What the client says, if that is sound.
pub(crate) fn caller(headers: &HeaderMap) -> Option<TraceParent> {
    Incoming::read(headers.get_all(TRACEPARENT).iter().map(HeaderValue::as_bytes)).valid()
}

/// Random numbers for ids and for chance, other ones on each thread of each proxy; by `seed` if the system has none.
pub(crate) fn rng(seed: u64) -> Rng {
    let mut bytes = [0; 8];
    match aws_lc_rs::default_provider().secure_random.fill(&mut bytes) {
        Ok(()) => Rng::new(u64::from_ne_bytes(bytes)),
        Err(_) => Rng::stream(seed, 1),
    }
}
