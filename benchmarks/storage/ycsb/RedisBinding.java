/*
 * Lets YCSB use a Redis, or whatever speaks its protocol. A record is a hash whose fields are those
 * of the record; a sorted set has the keys of all records, for scans.
 *
 * Properties: redis.host, redis.port, redis.password. Each thread of YCSB has its own connection.
 */
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.Vector;
import redis.clients.jedis.Jedis;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.DBException;
import site.ycsb.Status;
import site.ycsb.StringByteIterator;

public final class RedisBinding extends DB {
    private static final String KEYS = "ycsb:keys";
    private Jedis redis;

    @Override
    public void init() throws DBException {
        String host = getProperties().getProperty("redis.host", "127.0.0.1");
        int port = Integer.parseInt(getProperties().getProperty("redis.port", "6379"));
        String password = getProperties().getProperty("redis.password", "");
        try {
            redis = new Jedis(host, port);
            redis.connect();
            if (!password.isEmpty()) {
                redis.auth(password);
            }
        } catch (RuntimeException error) {
            throw new DBException(error);
        }
    }

    @Override
    public void cleanup() {
        redis.close();
    }

    @Override
    public Status read(
            String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
        if (fields == null) {
            Map<String, String> record = redis.hgetAll(key);
            StringByteIterator.putAllAsByteIterators(result, record);
            return record.isEmpty() ? Status.NOT_FOUND : Status.OK;
        }
        String[] names = fields.toArray(new String[0]);
        List<String> values = redis.hmget(key, names);
        for (int number = 0; number < names.length; number++) {
            if (values.get(number) != null) {
                result.put(names[number], new StringByteIterator(values.get(number)));
            }
        }
        return result.isEmpty() ? Status.NOT_FOUND : Status.OK;
    }

    @Override
    @SuppressWarnings("deprecation") // the command that replaces it is newer than ciel-kv's
    public Status scan(
            String table, String first, int count, Set<String> fields,
            Vector<HashMap<String, ByteIterator>> result) {
        double from = order(first);
        for (String key : redis.zrangeByScore(KEYS, from, Double.POSITIVE_INFINITY, 0, count)) {
            HashMap<String, ByteIterator> record = new HashMap<>();
            read(table, key, fields, record);
            result.add(record);
        }
        return Status.OK;
    }

    @Override
    public Status update(String table, String key, Map<String, ByteIterator> values) {
        redis.hset(key, StringByteIterator.getStringMap(values));
        return Status.OK;
    }

    @Override
    public Status insert(String table, String key, Map<String, ByteIterator> values) {
        redis.hset(key, StringByteIterator.getStringMap(values));
        redis.zadd(KEYS, order(key), key);
        return Status.OK;
    }

    @Override
    public Status delete(String table, String key) {
        boolean wasThere = redis.del(key) > 0;
        redis.zrem(KEYS, key);
        return wasThere ? Status.OK : Status.NOT_FOUND;
    }

    /** Returns the place of a key in the order of scans, which is not that of texts. */
    private static double order(String key) {
        return key.hashCode();
    }
}
