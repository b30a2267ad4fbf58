-- A small shop. Every change of orders is a row of the outbox, written at commit by the trigger
-- that `attach` creates; stock is emitted by hand, in the statement that changes it.
CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY, item text NOT NULL, pieces int NOT NULL);
CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, pieces int NOT NULL CHECK (pieces >= 0));
INSERT INTO stock VALUES ('tea', 5), ('milk', 2) ON CONFLICT DO NOTHING;
DO $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = 'orders'::regclass AND tgname = 'gapless_emit') THEN
        PERFORM gapless.attach('orders', 'shop.orders', 'id');
    END IF;
END
$$;
