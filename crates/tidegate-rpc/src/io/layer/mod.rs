//! Tower layers for any HTTP/1 or HTTP/2 stack: one before the handlers, one behind the callers.
