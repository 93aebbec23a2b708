//! The two profiles. They share four labels and nothing else: one is about bytes, the other about
//! jobs, and no number of one follows from the other. A profile is a place to start measuring from.

/// How much memory the ordinary queues may have.
///
/// | profile | share of the memory limit | cap | general queue | STREAM queue |
/// |---|---:|---:|---:|---:|
/// | `Compact` | 2 % | 64 MiB | 32 KiB to 512 KiB | 8 KiB to 32 KiB |
/// | `LowLatency` | 3 % | 256 MiB | 32 KiB to 2 MiB | 16 KiB to 64 KiB |
/// | `Balanced` | 5 % | 512 MiB | 64 KiB to 1 MiB | 64 KiB to 128 KiB |
/// | `Throughput` | 8 % | 1 GiB | 128 KiB to 8 MiB | 256 KiB to 512 KiB |
///
/// The cap gives way where so many queues exist that their minima need more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum HwmProfile {
    /// Small machines and many processes beside each other.
    Compact,
    /// Short queues: latency under saturation is the queue's bytes divided by the drain rate.
    LowLatency,
    /// The default.
    #[default]
    Balanced,
    /// Long queues: bursts are taken in, waiting gets longer.
    Throughput,
}

/// Between what a queue's planned mark lies, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueBounds {
    /// What every queue gets, even where the budget does not suffice.
    pub min: u64,
    /// What no queue gets more than.
    pub max: u64,
}

impl HwmProfile {
    /// All profiles, smallest first.
    pub const ALL: [HwmProfile; 4] =
        [HwmProfile::Compact, HwmProfile::LowLatency, HwmProfile::Balanced, HwmProfile::Throughput];

    /// Share of the memory limit, percent.
    pub fn percent(self) -> u64 {
        match self {
            HwmProfile::Compact => 2,
            HwmProfile::LowLatency => 3,
            HwmProfile::Balanced => 5,
            HwmProfile::Throughput => 8,
        }
    }

    /// What the budget does not exceed while the minima fit below it, bytes.
    pub fn cap(self) -> u64 {
        (match self {
            HwmProfile::Compact => 64,
            HwmProfile::LowLatency => 256,
            HwmProfile::Balanced => 512,
            HwmProfile::Throughput => 1024,
        }) << 20
    }

    /// Bounds of a queue to or from a node.
    pub fn general(self) -> QueueBounds {
        let (min, max) = match self {
            HwmProfile::Compact => (32, 512),
            HwmProfile::LowLatency => (32, 2048),
            HwmProfile::Balanced => (64, 1024),
            HwmProfile::Throughput => (128, 8192),
        };
        QueueBounds { min: min << 10, max: max << 10 }
    }

    /// Bounds of a subscriber's receive queue: as [`HwmProfile::general`], but up to 2 MiB under `Balanced`.
    pub fn subscriber(self) -> QueueBounds {
        let general = self.general();
        QueueBounds { max: if self == HwmProfile::Balanced { 2 << 20 } else { general.max }, ..general }
    }

    /// Bounds of a queue to or from a STREAM client.
    pub fn stream(self) -> QueueBounds {
        let (min, max) = match self {
            HwmProfile::Compact => (8, 32),
            HwmProfile::LowLatency => (16, 64),
            HwmProfile::Balanced => (64, 128),
            HwmProfile::Throughput => (256, 512),
        };
        QueueBounds { min: min << 10, max: max << 10 }
    }
}

/// How many jobs may wait for their handler, per effective processor.
///
/// | profile | jobs per processor | 4 processors | 16 processors |
/// |---|---:|---:|---:|
/// | `Compact` | 32 | 128 | 512 |
/// | `LowLatency` | 64 | 256 | 1,024 |
/// | `Balanced` | 128 | 512 | 2,048 |
/// | `Throughput` | 256 | 1,024 | 4,096 |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum JobQueueProfile {
    /// Few jobs held.
    Compact,
    /// Pressure reaches the sender early.
    LowLatency,
    /// The default.
    #[default]
    Balanced,
    /// Long runs of work per turn.
    Throughput,
}

impl JobQueueProfile {
    /// All profiles, smallest first.
    pub const ALL: [JobQueueProfile; 4] =
        [JobQueueProfile::Compact, JobQueueProfile::LowLatency, JobQueueProfile::Balanced, JobQueueProfile::Throughput];

    /// Jobs per effective processor.
    pub fn jobs_per_processor(self) -> u32 {
        match self {
            JobQueueProfile::Compact => 32,
            JobQueueProfile::LowLatency => 64,
            JobQueueProfile::Balanced => 128,
            JobQueueProfile::Throughput => 256,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_table_is_the_published_one() {
        let rows = [[128, 256, 512], [256, 512, 1024], [512, 1024, 2048], [1024, 2048, 4096]];
        for (profile, row) in JobQueueProfile::ALL.iter().zip(rows) {
            assert_eq!([4, 8, 16].map(|cpus| profile.jobs_per_processor() * cpus), row);
        }
    }

    #[test]
    fn the_budget_table_is_the_published_one() {
        let rows = [
            (2, 64, (32, 512), (8, 32)),
            (3, 256, (32, 2048), (16, 64)),
            (5, 512, (64, 1024), (64, 128)),
            (8, 1024, (128, 8192), (256, 512)),
        ];
        let kib = |bounds: QueueBounds| (bounds.min >> 10, bounds.max >> 10);
        for (profile, row) in HwmProfile::ALL.into_iter().zip(rows) {
            assert_eq!((profile.percent(), profile.cap() >> 20, kib(profile.general()), kib(profile.stream())), row);
        }
        assert_eq!(kib(HwmProfile::Balanced.subscriber()), (64, 2048));
        assert_eq!(HwmProfile::default(), HwmProfile::Balanced);
    }

    #[test]
    fn bounds_are_in_order_and_every_queue_fits_its_cap() {
        for profile in HwmProfile::ALL {
            for bounds in [profile.general(), profile.subscriber(), profile.stream()] {
                assert!(0 < bounds.min && bounds.min < bounds.max && bounds.max < profile.cap(), "{profile:?}");
            }
        }
    }
}
