/*
 * Lets YCSB use an etcd of version 3. A record is a range of keys, `TABLE/KEY/FIELD` for each field,
 * so that an update writes only the fields that it changes.
 *
 * Property: etcd.endpoint. All threads of YCSB share a client, which sends their requests on one
 * connection.
 */
import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.KV;
import io.etcd.jetcd.KeyValue;
import io.etcd.jetcd.kv.GetResponse;
import io.etcd.jetcd.op.Op;
import io.etcd.jetcd.options.DeleteOption;
import io.etcd.jetcd.options.GetOption;
import io.etcd.jetcd.options.PutOption;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.Vector;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import site.ycsb.ByteArrayByteIterator;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.Status;

public final class EtcdBinding extends DB {
    private static Client client;
    private static int users;
    private KV kv;

    @Override
    public void init() {
        synchronized (EtcdBinding.class) {
            if (users++ == 0) {
                String endpoint = "http://127.0.0.1:2379";
                endpoint = getProperties().getProperty("etcd.endpoint", endpoint);
                client = Client.builder().endpoints(endpoint).build();
            }
            kv = client.getKVClient();
        }
    }

    @Override
    public void cleanup() {
        synchronized (EtcdBinding.class) {
            if (--users == 0) {
                client.close();
            }
        }
    }

    @Override
    public Status read(
            String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
        GetOption ofRecord = GetOption.builder().isPrefix(true).build();
        GetResponse found = await(kv.get(bytes(table + "/" + key + "/"), ofRecord));
        for (KeyValue row : found.getKvs()) {
            String path = row.getKey().toString(StandardCharsets.UTF_8);
            String field = path.substring(path.lastIndexOf('/') + 1);
            if (fields == null || fields.contains(field)) {
                result.put(field, new ByteArrayByteIterator(row.getValue().getBytes()));
            }
        }
        return result.isEmpty() ? Status.NOT_FOUND : Status.OK;
    }

    @Override
    public Status scan(
            String table, String first, int count, Set<String> fields,
            Vector<HashMap<String, ByteIterator>> result) {
        return Status.NOT_IMPLEMENTED;
    }

    @Override
    public Status update(String table, String key, Map<String, ByteIterator> values) {
        Op[] puts = values.entrySet().stream()
                .map(field -> Op.put(
                        bytes(table + "/" + key + "/" + field.getKey()),
                        ByteSequence.from(field.getValue().toArray()),
                        PutOption.DEFAULT))
                .toArray(Op[]::new);
        await(kv.txn().Then(puts).commit());
        return Status.OK;
    }

    @Override
    public Status insert(String table, String key, Map<String, ByteIterator> values) {
        return update(table, key, values);
    }

    @Override
    public Status delete(String table, String key) {
        DeleteOption ofRecord = DeleteOption.builder().isPrefix(true).build();
        long deleted = await(kv.delete(bytes(table + "/" + key + "/"), ofRecord)).getDeleted();
        return deleted > 0 ? Status.OK : Status.NOT_FOUND;
    }

    private static ByteSequence bytes(String text) {
        return ByteSequence.from(text, StandardCharsets.UTF_8);
    }

    private static <T> T await(CompletableFuture<T> answer) {
        try {
            return answer.get();
        } catch (InterruptedException | ExecutionException error) {
            throw new IllegalStateException(error);
        }
    }
}
