import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Date;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.connect.connector.ConnectRecord;
import org.apache.kafka.connect.data.ConnectSchema;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.header.ConnectHeaders;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.transforms.Transformation;
import org.apache.kafka.connect.transforms.predicates.Predicate;

/** Runs Kafka Connect's own transforms and predicates over the inputs of a case file, and writes what they give. */
public class Oracle {
    static final JsonNodeFactory F = JsonNodeFactory.instance;

    public static void main(String[] args) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        ArrayNode cases = (ArrayNode) mapper.readTree(new File(args[0]));
        for (JsonNode one : cases) {
            ((ObjectNode) one).set("expect", run(one));
        }
        mapper.writerWithDefaultPrettyPrinter().writeValue(new File(args[1]), cases);
    }

    static ObjectNode failure(String when, Throwable error) {
        ObjectNode node = F.objectNode();
        node.put("fails", when);
        node.put("error", error.getClass().getSimpleName());
        node.put("message", error.getMessage());
        return node;
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    static ObjectNode run(JsonNode one) throws Exception {
        Object plugin = Class.forName(one.get("class").asText()).getDeclaredConstructor().newInstance();
        Map<String, String> config = new HashMap<>();
        one.get("config").fields().forEachRemaining(e -> config.put(e.getKey(), e.getValue().asText()));
        try {
            if (plugin instanceof Transformation) ((Transformation<?>) plugin).configure(config);
            else ((Predicate<?>) plugin).configure(config);
        } catch (Exception error) {
            return failure("configure", error);
        }
        ObjectNode answer = F.objectNode();
        try {
            ConnectRecord<?> record = record(one.get("record"));
            if (plugin instanceof Predicate) {
                answer.put("holds", ((Predicate) plugin).test(record));
                return answer;
            }
            Object given = ((Transformation) plugin).apply(record);
            if (given == null) answer.set("record", F.nullNode());
            else answer.set("record", record((ConnectRecord<?>) given));
        } catch (Exception error) {
            return failure("apply", error);
        }
        return answer;
    }

    static ConnectRecord<?> record(JsonNode node) {
        Schema ks = schema(node.get("key_schema")), vs = schema(node.get("value_schema"));
        Object key = value(ks, node.get("key")), value = value(vs, node.get("value"));
        ConnectHeaders headers = new ConnectHeaders();
        if (node.has("headers")) for (JsonNode h : node.get("headers")) {
            Schema s = schema(h.get(1));
            headers.add(h.get(0).asText(), value(s, h.get(2)), s);
        }
        Integer partition = node.get("partition").isNull() ? null : node.get("partition").asInt();
        Long timestamp = node.get("timestamp").isNull() ? null : node.get("timestamp").asLong();
        if (node.get("kind").asText().equals("source"))
            return new SourceRecord(Map.of(), Map.of(), node.get("topic").asText(), partition, ks, key, vs, value, timestamp, headers);
        return new SinkRecord(node.get("topic").asText(), partition, ks, key, vs, value, node.get("offset").asLong(), timestamp, TimestampType.CREATE_TIME, headers);
    }

    static ObjectNode record(ConnectRecord<?> record) {
        ObjectNode node = F.objectNode();
        node.put("kind", record instanceof SourceRecord ? "source" : "sink");
        node.put("topic", record.topic());
        node.put("partition", record.kafkaPartition());
        if (record instanceof SinkRecord) node.put("offset", ((SinkRecord) record).kafkaOffset());
        node.put("timestamp", record.timestamp());
        node.set("key_schema", schema(record.keySchema()));
        node.set("key", value(record.key()));
        node.set("value_schema", schema(record.valueSchema()));
        node.set("value", value(record.value()));
        ArrayNode headers = node.putArray("headers");
        for (Header h : record.headers()) {
            ArrayNode one = headers.addArray();
            one.add(h.key());
            one.add(schema(h.schema()));
            one.add(value(h.value()));
        }
        return node;
    }

    static Schema schema(JsonNode node) {
        if (node == null || node.isNull()) return null;
        Schema.Type type = Schema.Type.valueOf(node.get("type").asText().toUpperCase());
        SchemaBuilder builder;
        if (type == Schema.Type.ARRAY) builder = SchemaBuilder.array(schema(node.get("items")));
        else if (type == Schema.Type.MAP) builder = SchemaBuilder.map(schema(node.get("keys")), schema(node.get("values")));
        else builder = new SchemaBuilder(type);
        if (node.has("name")) builder.name(node.get("name").asText());
        if (node.has("version")) builder.version(node.get("version").asInt());
        if (node.has("doc")) builder.doc(node.get("doc").asText());
        if (node.has("parameters")) node.get("parameters").fields().forEachRemaining(e -> builder.parameter(e.getKey(), e.getValue().asText()));
        if (type == Schema.Type.STRUCT) for (JsonNode f : node.get("fields")) builder.field(f.get(0).asText(), schema(f.get(1)));
        if (node.has("optional") && node.get("optional").asBoolean()) builder.optional();
        if (node.has("default")) builder.defaultValue(value(builder, node.get("default")));
        return builder.build();
    }

    static JsonNode schema(Schema schema) {
        if (schema == null) return F.nullNode();
        ObjectNode node = F.objectNode();
        node.put("type", schema.type().getName());
        if (schema.isOptional()) node.put("optional", true);
        if (schema.name() != null) node.put("name", schema.name());
        if (schema.version() != null) node.put("version", schema.version());
        if (schema.doc() != null) node.put("doc", schema.doc());
        if (schema.parameters() != null && !schema.parameters().isEmpty()) {
            ObjectNode parameters = node.putObject("parameters");
            schema.parameters().forEach(parameters::put);
        }
        if (schema.defaultValue() != null) node.set("default", value(schema.defaultValue()));
        switch (schema.type()) {
            case ARRAY: node.set("items", schema(schema.valueSchema())); break;
            case MAP: node.set("keys", schema(schema.keySchema())); node.set("values", schema(schema.valueSchema())); break;
            case STRUCT:
                ArrayNode fields = node.putArray("fields");
                for (Field f : schema.fields()) fields.addArray().add(f.name()).add(schema(f.schema()));
                break;
            default:
        }
        return node;
    }

    static Object value(Schema schema, JsonNode node) {
        if (node == null || node.isNull()) return null;
        if (node.isBoolean()) return node.asBoolean();
        if (node.isTextual()) return node.asText();
        String tag = node.fieldNames().next();
        JsonNode inner = node.get(tag);
        switch (tag) {
            case "int8": return (byte) inner.asInt();
            case "int16": return (short) inner.asInt();
            case "int32": return inner.asInt();
            case "int64": return inner.asLong();
            case "float32": return inner.isTextual() ? Float.valueOf(inner.asText()) : (Float) (float) inner.asDouble();
            case "float64": return inner.isTextual() ? Double.valueOf(inner.asText()) : (Double) inner.asDouble();
            case "bytes": return Base64.getDecoder().decode(inner.asText());
            case "decimal": return new BigDecimal(inner.asText());
            case "date": return new Date(inner.asLong());
            case "list": {
                List<Object> list = new ArrayList<>();
                for (JsonNode item : inner) list.add(value(schema == null ? null : schema.valueSchema(), item));
                return list;
            }
            case "map": {
                Map<Object, Object> map = new LinkedHashMap<>();
                for (JsonNode pair : inner)
                    map.put(value(schema == null ? null : schema.keySchema(), pair.get(0)), value(schema == null ? null : schema.valueSchema(), pair.get(1)));
                return map;
            }
            case "struct": {
                Struct struct = new Struct(schema instanceof SchemaBuilder ? ((SchemaBuilder) schema).build() : schema);
                for (JsonNode pair : inner) struct.put(pair.get(0).asText(), value(schema.field(pair.get(0).asText()).schema(), pair.get(1)));
                return struct;
            }
            default: throw new IllegalArgumentException(tag);
        }
    }

    static JsonNode tag(String tag, JsonNode inner) {
        ObjectNode node = F.objectNode();
        node.set(tag, inner);
        return node;
    }

    static JsonNode real(String tag, double value, String text) {
        return tag(tag, Double.isNaN(value) || Double.isInfinite(value) ? F.textNode(text) : F.numberNode(value));
    }

    static JsonNode value(Object value) {
        if (value == null) return F.nullNode();
        if (value instanceof Boolean) return F.booleanNode((Boolean) value);
        if (value instanceof String) return F.textNode((String) value);
        if (value instanceof Byte) return tag("int8", F.numberNode((Byte) value));
        if (value instanceof Short) return tag("int16", F.numberNode((Short) value));
        if (value instanceof Integer) return tag("int32", F.numberNode((Integer) value));
        if (value instanceof Long) return tag("int64", F.numberNode((Long) value));
        if (value instanceof Float) return real("float32", (Float) value, value.toString());
        if (value instanceof Double) return real("float64", (Double) value, value.toString());
        if (value instanceof byte[]) return tag("bytes", F.textNode(Base64.getEncoder().encodeToString((byte[]) value)));
        if (value instanceof ByteBuffer) {
            ByteBuffer copy = ((ByteBuffer) value).duplicate();
            byte[] bytes = new byte[copy.remaining()];
            copy.get(bytes);
            return value(bytes);
        }
        if (value instanceof BigDecimal) return tag("decimal", F.textNode(((BigDecimal) value).toPlainString()));
        if (value instanceof java.math.BigInteger) return tag("biginteger", F.textNode(value.toString()));
        if (value instanceof Date) return tag("date", F.numberNode(((Date) value).getTime()));
        if (value instanceof List) {
            ArrayNode list = F.arrayNode();
            for (Object item : (List<?>) value) list.add(value(item));
            return tag("list", list);
        }
        if (value instanceof Map) {
            ArrayNode pairs = F.arrayNode();
            ((Map<?, ?>) value).forEach((k, v) -> pairs.addArray().add(value(k)).add(value(v)));
            return tag("map", pairs);
        }
        if (value instanceof Struct) {
            ArrayNode pairs = F.arrayNode();
            for (Field f : ((Struct) value).schema().fields())
                pairs.addArray().add(f.name()).add(value(((Struct) value).getWithoutDefault(f.name())));
            return tag("struct", pairs);
        }
        throw new IllegalArgumentException(value.getClass().getName());
    }
}
