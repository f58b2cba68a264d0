ALTER TABLE batch ADD COLUMN reading_microseconds BIGINT DEFAULT '0' NOT NULL;
ALTER TABLE ledger ADD COLUMN reading_microseconds BIGINT DEFAULT '0' NOT NULL;
ALTER TABLE ledger ADD COLUMN reading_price_micros BIGINT DEFAULT '0' NOT NULL;
ALTER TABLE batch ADD COLUMN reading_limit_seconds BIGINT;
ALTER TABLE tenant ADD COLUMN max_reading_seconds_per_day BIGINT;
ALTER TABLE budget ADD COLUMN reading_day DATE;
ALTER TABLE budget ADD COLUMN reading_microseconds BIGINT DEFAULT '0' NOT NULL;
