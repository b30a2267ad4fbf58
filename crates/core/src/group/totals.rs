//! What happened in a group, counted.

/// What happened since the broker was opened, in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupTotals {
    /// Handed out.
    pub delivered: u64,
    /// Of these, in a second or later attempt.
    pub redelivered: u64,
    /// Acked.
    pub acked: u64,
    /// Given back.
    pub nacked: u64,
    /// Whose lease ran out.
    pub expired: u64,
    /// Buried as dead letters.
    pub buried: u64,
    /// Failed for the last time and let go.
    pub dropped: u64,
    /// Gone before they could be handed out.
    pub lost: u64,
}

impl GroupTotals {
    /// The totals with these numbers, in the order of the fields.
    pub fn from_numbers(numbers: [u64; 8]) -> Self {
        let [delivered, redelivered, acked, nacked, expired, buried, dropped, lost] = numbers;
        Self { delivered, redelivered, acked, nacked, expired, buried, dropped, lost }
    }

    /// Its numbers, in the order of the fields.
    pub fn numbers(&self) -> [u64; 8] {
        let Self { delivered, redelivered, acked, nacked, expired, buried, dropped, lost } = *self;
        [delivered, redelivered, acked, nacked, expired, buried, dropped, lost]
    }
}
