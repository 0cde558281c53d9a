// Fills in what Kafka Connect's own converters give for the inputs of a case file; see README.md.

import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.converters.BooleanConverter;
import org.apache.kafka.connect.converters.ByteArrayConverter;
import org.apache.kafka.connect.converters.DoubleConverter;
import org.apache.kafka.connect.converters.FloatConverter;
import org.apache.kafka.connect.converters.IntegerConverter;
import org.apache.kafka.connect.converters.LongConverter;
import org.apache.kafka.connect.converters.ShortConverter;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.HeaderConverter;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;
import org.apache.kafka.connect.storage.StringConverter;

public class KafkaResults {
  static final JsonNodeFactory NODES = JsonNodeFactory.instance;

  public static void main(String[] files) throws Exception {
    ObjectMapper mapper = new ObjectMapper();
    mapper.getFactory().enable(JsonGenerator.Feature.ESCAPE_NON_ASCII);
    for (String name : files) {
      File file = new File(name);
      ArrayNode cases = (ArrayNode) mapper.readTree(file);
      StringBuilder out = new StringBuilder("[\n");
      for (int i = 0; i < cases.size(); i++) {
        ObjectNode one = (ObjectNode) cases.get(i);
        one.set("expect", result(one));
        out.append(" ").append(mapper.writeValueAsString(one)).append(i + 1 < cases.size() ? ",\n" : "\n");
      }
      java.nio.file.Files.writeString(file.toPath(), out.append("]\n"));
    }
  }

  static ObjectNode result(ObjectNode one) {
    ObjectNode result = NODES.objectNode();
    try {
      Map<String, Object> config = new HashMap<>();
      one.path("config").fields().forEachRemaining(e -> config.put(e.getKey(), e.getValue().asText()));
      boolean writes = one.get("do").asText().equals("to");
      String kind = one.get("converter").asText();
      Object converter = converter(kind);
      if (converter instanceof HeaderConverter && kind.equals("header")) {
        ((HeaderConverter) converter).configure(config);
        HeaderConverter header = (HeaderConverter) converter;
        if (writes) bytes(result, header.fromConnectHeader("t", "h", schema(one.get("schema")), value(one)));
        else read(result, header.toConnectHeader("t", "h", body(one)));
      } else {
        Converter plain = (Converter) converter;
        plain.configure(config, false);
        if (writes) bytes(result, plain.fromConnectData("t", schema(one.get("schema")), value(one)));
        else read(result, plain.toConnectData("t", body(one)));
      }
    } catch (Exception error) {
      result.removeAll();
      result.put("error", error.getClass().getSimpleName());
    }
    return result;
  }

  static Object converter(String name) {
    switch (name) {
      case "json": return new JsonConverter();
      case "string": return new StringConverter();
      case "bytes": return new ByteArrayConverter();
      case "short": return new ShortConverter();
      case "integer": return new IntegerConverter();
      case "long": return new LongConverter();
      case "float": return new FloatConverter();
      case "double": return new DoubleConverter();
      case "boolean": return new BooleanConverter();
      case "header": return new SimpleHeaderConverter();
      default: throw new IllegalArgumentException(name);
    }
  }

  static byte[] body(ObjectNode one) {
    if (one.hasNonNull("text")) return one.get("text").asText().getBytes(StandardCharsets.UTF_8);
    return one.hasNonNull("base64") ? Base64.getDecoder().decode(one.get("base64").asText()) : null;
  }

  static void bytes(ObjectNode result, byte[] body) {
    if (body == null) {
      result.putNull("base64");
      return;
    }
    String text = new String(body, StandardCharsets.UTF_8);
    if (java.util.Arrays.equals(text.getBytes(StandardCharsets.UTF_8), body) && text.chars().noneMatch(c -> c < 9)) result.put("text", text);
    else result.put("base64", Base64.getEncoder().encodeToString(body));
  }

  static void read(ObjectNode result, SchemaAndValue found) {
    result.set("schema", describe(found.schema()));
    result.set("value", describe(found.value()));
  }

  static Object value(ObjectNode one) {
    return value(one.get("value"), schema(one.get("schema")));
  }

  static Schema schema(JsonNode node) {
    if (node == null || node.isNull()) return null;
    SchemaBuilder builder;
    String type = node.get("type").asText();
    switch (type) {
      case "array": builder = SchemaBuilder.array(schema(node.get("items"))); break;
      case "map": builder = SchemaBuilder.map(schema(node.get("keys")), schema(node.get("values"))); break;
      case "struct":
        builder = SchemaBuilder.struct();
        for (JsonNode field : node.get("fields")) builder.field(field.get(0).asText(), schema(field.get(1)));
        break;
      default: builder = SchemaBuilder.type(Schema.Type.valueOf(type.toUpperCase()));
    }
    if (node.path("optional").asBoolean()) builder.optional();
    if (node.hasNonNull("name")) builder.name(node.get("name").asText());
    if (node.hasNonNull("version")) builder.version(node.get("version").asInt());
    if (node.hasNonNull("doc")) builder.doc(node.get("doc").asText());
    node.path("parameters").fields().forEachRemaining(e -> builder.parameter(e.getKey(), e.getValue().asText()));
    if (node.hasNonNull("default")) builder.defaultValue(value(node.get("default"), builder));
    return builder.build();
  }

  static Object value(JsonNode node, Schema schema) {
    if (node == null || node.isNull()) return null;
    String kind = node.fieldNames().next();
    JsonNode given = node.get(kind);
    switch (kind) {
      case "int8": return (byte) given.asInt();
      case "int16": return (short) given.asInt();
      case "int32": return given.asInt();
      case "int64": return given.asLong();
      case "float32": return Float.valueOf(given.asText());
      case "float64": return Double.valueOf(given.asText());
      case "boolean": return given.asBoolean();
      case "string": return given.asText();
      case "bytes": return Base64.getDecoder().decode(given.asText());
      case "decimal": return new BigDecimal(given.asText());
      case "date": return new java.util.Date(given.asLong());
      case "array":
        List<Object> list = new ArrayList<>();
        for (JsonNode item : given) list.add(value(item, schema == null ? null : schema.valueSchema()));
        return list;
      case "map":
        Map<Object, Object> map = new LinkedHashMap<>();
        for (JsonNode pair : given)
          map.put(
              value(pair.get(0), schema == null ? null : schema.keySchema()),
              value(pair.get(1), schema == null ? null : schema.valueSchema()));
        return map;
      case "struct":
        Struct struct = new Struct(schema.schema());
        for (JsonNode pair : given) {
          Field field = schema.field(pair.get(0).asText());
          struct.put(field, value(pair.get(1), field.schema()));
        }
        return struct;
      default: throw new IllegalArgumentException(kind);
    }
  }

  static JsonNode describe(Schema schema) {
    if (schema == null) return NODES.nullNode();
    ObjectNode node = NODES.objectNode().put("type", schema.type().getName());
    if (schema.type() == Schema.Type.ARRAY) node.set("items", describe(schema.valueSchema()));
    if (schema.type() == Schema.Type.MAP) {
      node.set("keys", describe(schema.keySchema()));
      node.set("values", describe(schema.valueSchema()));
    }
    if (schema.type() == Schema.Type.STRUCT) {
      ArrayNode fields = node.putArray("fields");
      for (Field field : schema.fields()) fields.addArray().add(field.name()).add(describe(field.schema()));
    }
    if (schema.isOptional()) node.put("optional", true);
    if (schema.name() != null) node.put("name", schema.name());
    if (schema.version() != null) node.put("version", schema.version());
    if (schema.doc() != null) node.put("doc", schema.doc());
    if (schema.parameters() != null && !schema.parameters().isEmpty()) {
      ObjectNode parameters = node.putObject("parameters");
      schema.parameters().forEach(parameters::put);
    }
    if (schema.defaultValue() != null) node.set("default", describe(schema.defaultValue()));
    return node;
  }

  static JsonNode describe(Object value) {
    if (value == null) return NODES.nullNode();
    ObjectNode node = NODES.objectNode();
    if (value instanceof Byte) node.put("int8", (Byte) value);
    else if (value instanceof Short) node.put("int16", (Short) value);
    else if (value instanceof Integer) node.put("int32", (Integer) value);
    else if (value instanceof Long) node.put("int64", (Long) value);
    else if (value instanceof Float) node.put("float32", value.toString());
    else if (value instanceof Double) node.put("float64", value.toString());
    else if (value instanceof Boolean) node.put("boolean", (Boolean) value);
    else if (value instanceof String) node.put("string", (String) value);
    else if (value instanceof BigDecimal) node.put("decimal", value.toString());
    else if (value instanceof java.util.Date) node.put("date", ((java.util.Date) value).getTime());
    else if (value instanceof byte[]) node.put("bytes", Base64.getEncoder().encodeToString((byte[]) value));
    else if (value instanceof ByteBuffer) node.put("bytes", Base64.getEncoder().encodeToString(((ByteBuffer) value).array()));
    else if (value instanceof List) {
      ArrayNode items = node.putArray("array");
      for (Object item : (List<?>) value) items.add(describe(item));
    } else if (value instanceof Map) {
      ArrayNode pairs = node.putArray("map");
      ((Map<?, ?>) value).forEach((k, v) -> pairs.addArray().add(describe(k)).add(describe(v)));
    } else if (value instanceof Struct) {
      ArrayNode pairs = node.putArray("struct");
      Struct struct = (Struct) value;
      for (Field field : struct.schema().fields())
        pairs.addArray().add(field.name()).add(describe(struct.getWithoutDefault(field.name())));
    } else throw new IllegalArgumentException(value.getClass().getName());
    return node;
  }
}
