-- Version 1 of the outbox. The words in braces are names, checked before they are put in.

CREATE SCHEMA IF NOT EXISTS {schema};

-- What this outbox is: its version, names and how much it keeps.
CREATE TABLE {schema}.meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,
    outbox text NOT NULL,
    offsets text NOT NULL,
    channel text NOT NULL,
    partition_rows bigint NOT NULL CHECK (partition_rows > 0),
    retention interval NOT NULL
);
INSERT INTO {schema}.meta (version, outbox, offsets, channel, partition_rows, retention)
VALUES (1, '{outbox}', '{offsets}', '{schema}_{outbox}', {partition_rows}, interval '{retention_s} s');

-- A domain, not a check of the table: that is compiled again by every statement, at a tenth of
-- the price of a row.
CREATE DOMAIN {schema}.op AS text CHECK (VALUE IN ('upsert', 'delete'));

-- The rows. ALWAYS: nothing but the sequence gives numbers. CACHE 1: they are drawn in order.
CREATE TABLE {schema}.{outbox} (
    seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
    op {schema}.op NOT NULL,
    event_id text NOT NULL,
    topic_id text NOT NULL,
    kind text,
    created_at timestamptz NOT NULL DEFAULT now(),
    ingested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    effective_key text,
    reason text,
    payload bytea,
    PRIMARY KEY (seq)
) PARTITION BY RANGE (seq);

-- Takes what no other partition takes, so that writers never fail for want of one.
CREATE TABLE {schema}.{outbox}_rest PARTITION OF {schema}.{outbox} DEFAULT;

CREATE TABLE {schema}.partitions (
    from_seq bigint PRIMARY KEY,
    to_seq bigint NOT NULL,
    name text NOT NULL
);

-- Up to safe_seq every row is settled; up to floor_seq rows are removed.
CREATE TABLE {schema}.fence (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    safe_seq bigint NOT NULL DEFAULT 0,
    floor_seq bigint NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 10);
INSERT INTO {schema}.fence DEFAULT VALUES;

-- A crash of the server empties it: so it tells one life from the next.
CREATE UNLOGGED TABLE {schema}.life (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    id uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO {schema}.life DEFAULT VALUES;

-- Histories of the numbers: a promotion or a restore begins a new one.
CREATE TABLE {schema}.epochs (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id uuid NOT NULL DEFAULT gen_random_uuid() UNIQUE,
    after_seq bigint NOT NULL,
    system_identifier text NOT NULL,
    timeline text NOT NULL,
    reason text NOT NULL,
    began_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO {schema}.epochs (after_seq, system_identifier, timeline, reason)
SELECT 0, system_identifier::text, left(pg_walfile_name(pg_current_wal_lsn()), 8), 'installed'
FROM pg_control_system();

-- Who runs the fence, and which consumer runs where.
CREATE TABLE {schema}.leases (
    role text PRIMARY KEY,
    holder uuid NOT NULL,
    application text NOT NULL,
    until timestamptz NOT NULL
) WITH (fillfactor = 10);

CREATE TABLE {schema}.{offsets} (
    consumer text PRIMARY KEY,
    last_seq bigint NOT NULL CHECK (last_seq >= 0),
    epoch uuid,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 10);

-- For consumers that must do each event once: see {schema}.processed_once().
CREATE TABLE {schema}.processed (
    consumer text NOT NULL,
    event_id text NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, event_id)
);
CREATE INDEX processed_by_time ON {schema}.processed USING brin (processed_at);

-- Rows that a consumer gave up on, with why.
CREATE TABLE {schema}.dead_letters (
    consumer text NOT NULL,
    seq bigint NOT NULL,
    op text NOT NULL,
    event_id text NOT NULL,
    topic_id text NOT NULL,
    kind text,
    effective_key text,
    reason text,
    payload bytea,
    attempts integer NOT NULL,
    error text NOT NULL,
    died_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, seq)
);

