//! Records to bytes. What is written is everything in front of the payload; the payload follows
//! from where it lies, copied behind its head if it is small, as a piece of a vectored write if not.

use crate::base::error::ErrorKind;
use crate::base::record::Record;
use crate::base::unit::HEADER_LEN;

use super::frame::{FrameHead, HEAD_MAX, SHORT_MAX, head_len, write_frame};
use super::header::Header;
use super::stock;

/// How long a native record is on the wire.
#[inline]
pub fn wire_len(record: &Record) -> usize {
    let body = body_len(record);
    head_len(body as u64) + body
}

#[inline]
fn body_len(record: &Record) -> usize {
    HEADER_LEN + record.method.as_bytes().len() + record.payload.len()
}

/// Appends a native record up to its payload, which must follow: frame head, header, method.
/// `wire_channel` is the channel's number on that link, or the number of an error's kind.
#[inline(always)]
pub fn encode_head(record: &Record, wire_channel: u16, out: &mut Vec<u8>) {
    let method = record.method.as_bytes();
    encode_header(Header::of(record, wire_channel), method.len() + record.payload.len(), out);
    if !method.is_empty() {
        out.extend_from_slice(method);
    }
}

/// Appends frame head and header of a native record; `rest` bytes of method and payload must follow.
#[inline(always)]
pub fn encode_header(header: Header, rest: usize, out: &mut Vec<u8>) {
    let len = HEADER_LEN + rest;
    // Frame head and header in one piece of a size that the compiler knows: no call for a copy.
    if len <= SHORT_MAX {
        let mut head = [0; 2 + HEADER_LEN];
        head[1] = len as u8;
        head[2..].copy_from_slice(&header.to_bytes());
        out.extend_from_slice(&head);
    } else {
        encode_long(header, len, out);
    }
}

#[inline(never)]
fn encode_long(header: Header, len: usize, out: &mut Vec<u8>) {
    let mut head = [0; HEAD_MAX + HEADER_LEN];
    head[..HEAD_MAX].copy_from_slice(&FrameHead::new(false, false, len as u64).to_bytes());
    head[HEAD_MAX..].copy_from_slice(&header.to_bytes());
    out.extend_from_slice(&head);
}

/// Appends a whole native record: for small ones, that are gathered into one write.
#[inline]
pub fn encode(record: &Record, wire_channel: u16, out: &mut Vec<u8>) {
    out.reserve(wire_len(record));
    encode_head(record, wire_channel, out);
    out.extend_from_slice(&record.payload);
}

/// Appends the answer to a stock peer behind the envelope of its request. `Ok(len)`: everything up
/// to a payload of `len` bytes, which must follow. `Err`: all of an error answer.
pub fn encode_stock_answer(envelope: &[u8], answer: Result<usize, (ErrorKind, &str)>, out: &mut Vec<u8>) {
    match answer {
        Ok(payload_len) => {
            out.extend_from_slice(envelope);
            write_frame(true, stock::OK, out);
            FrameHead::new(false, false, payload_len as u64).write(out);
        }
        Err((kind, sentence)) => stock::write_error_answer(envelope, kind, sentence, out),
    }
}

/// Appends a request to a stock ROUTER that we dialled, up to its payload, which must follow.
pub fn encode_stock_request(correlation: u64, route: &str, payload_len: usize, out: &mut Vec<u8>) {
    write_frame(true, &correlation.to_be_bytes(), out);
    write_frame(true, b"", out);
    encode_pair_head(route.as_bytes(), payload_len, out);
}

/// Appends a frame and the head of a last one of `payload_len` bytes, which must follow: a one-way
/// message to a stock peer (route, payload), or a publication (topic, payload).
pub fn encode_pair_head(first: &[u8], payload_len: usize, out: &mut Vec<u8>) {
    write_frame(true, first, out);
    FrameHead::new(false, false, payload_len as u64).write(out);
}
