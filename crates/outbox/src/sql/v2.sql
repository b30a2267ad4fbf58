-- Version 2 of the outbox: a writer calls functions and touches no table. In version 1 it had INSERT,
-- with which it could give numbers by hand, and saw the numbers of all rows.

DO $body$
DECLARE
    writer name;
BEGIN
    FOR writer IN
        SELECT DISTINCT r.rolname FROM pg_class c
        CROSS JOIN LATERAL aclexplode(c.relacl) a
        JOIN pg_roles r ON r.oid = a.grantee
        WHERE c.oid = '{schema}.{outbox}'::regclass AND a.privilege_type = 'INSERT'
          AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('REVOKE INSERT, SELECT (seq) ON {schema}.{outbox} FROM %I', writer);
        EXECUTE format(
            'GRANT EXECUTE ON FUNCTION {schema}.emit, {schema}.emit_bytes, {schema}.emit_row, '
            '{schema}.attach, {schema}.detach TO %I', writer);
    END LOOP;
END
$body$;
