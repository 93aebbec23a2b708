//! The frames of end clients against an oracle that is written from the drawing alone.

use afflux::wire::error::WireError;
use afflux::wire::stream::{FrameDecoder, Prefix, Whole, encode_head};
use proptest::collection::vec;
use proptest::prelude::*;

use super::fuzz_bodies::{self, MAX_MESSAGE, cut, feed_frames};

/// A frame as the drawing says.
fn drawn(header: &[u8], body: &[u8]) -> Vec<u8> {
    let mut out = vec![(header.len() >> 8) as u8, header.len() as u8];
    out.extend([24, 16, 8, 0].map(|shift| (body.len() >> shift) as u8));
    out.extend(header);
    out.extend(body);
    out
}

fn frame() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let body = prop_oneof![
        3 => vec(any::<u8>(), 0..200),
        1 => (4000_usize..30_000, any::<u8>()).prop_map(|(n, b)| (0..n).map(|i| b.wrapping_add(i as u8)).collect()),
    ];
    (vec(any::<u8>(), 0..20), body)
}

proptest! {
    #[test]
    fn frames_are_written_and_read_as_drawn(frames in vec(frame(), 0..12), seed in any::<u8>(), direct in any::<bool>()) {
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for (header, body) in &frames {
            let mut written = Vec::new();
            encode_head(header, body.len(), &mut written);
            written.extend(body);
            prop_assert_eq!(&written, &drawn(header, body));
            bytes.extend(written);
            expected.push(Whole { header: header.len() as u16, bytes: [&header[..], body].concat() });
        }
        let framed = feed_frames(MAX_MESSAGE, cut(&bytes, seed), direct);
        prop_assert_eq!(framed.frames, expected);
        prop_assert!(framed.error.is_none() && !framed.within);
    }

    #[test]
    fn a_stream_that_is_cut_off_is_within_a_frame_or_between_two(
        frames in vec(frame(), 1..6),
        at in any::<prop::sample::Index>(),
        seed in any::<u8>(),
    ) {
        let bytes: Vec<u8> = frames.iter().flat_map(|(h, b)| drawn(h, b)).collect();
        let at = at.index(bytes.len() + 1);
        let mut boundaries = vec![0];
        for (h, b) in &frames {
            boundaries.push(boundaries[boundaries.len() - 1] + 6 + h.len() + b.len());
        }
        let framed = feed_frames(MAX_MESSAGE, cut(&bytes[..at], seed), true);
        prop_assert_eq!(framed.within, !boundaries.contains(&at));
        prop_assert_eq!(framed.frames.len(), boundaries.iter().filter(|b| **b <= at).count() - 1);
    }

    #[test]
    fn a_length_above_the_limit_is_refused_by_its_prefix(header in any::<u16>(), body in any::<u32>(), max in 0..1_u64 << 33) {
        let prefix = Prefix { header, body };
        let mut decoder = FrameDecoder::new(max);
        let size = u64::from(header) + u64::from(body);
        let taken = decoder.take_prefix(&prefix.to_bytes());
        if size <= max {
            prop_assert_eq!(taken, Ok((6, Some(size))));
        } else {
            prop_assert_eq!(taken, Err(WireError::TooLarge { what: "a frame", size, max }));
        }
        prop_assert_eq!(decoder.capacity(), 0);
    }

    #[test]
    fn garbage_is_frames_or_an_error_and_nothing_else(data in vec(any::<u8>(), 0..400), small in any::<bool>()) {
        let mut input = data;
        if small {
            // Lengths that may be: behind every prefix something is read.
            for chunk in input.chunks_mut(7) {
                chunk.iter_mut().skip(1).take(3).for_each(|b| *b = 0);
            }
        }
        fuzz_bodies::frames(&input);
    }
}
