// Answers the lines of capture_assignors.py with what Java's own classes do. Run by it, from source:
// java -cp <Kafka's jars> CaptureAssignors.java. Words of a line are parted by blanks, rows by "|",
// lists by ",", racks by "+"; "-" stands for nothing; bytes are hexadecimal; a partition is topic:number.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.AppInfoParser;

public class CaptureAssignors {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] rows = line.split("\\|");
            String[] head = rows[0].split(" ");
            System.out.println(switch (head[0]) {
                case "version" -> AppInfoParser.getVersion();
                case "assign" -> assign(head, rows);
                case "subscription" -> hex(ConsumerProtocol.serializeSubscription(
                    subscription(head, 1), Short.parseShort(head[6])));
                case "assignment" -> hex(ConsumerProtocol.serializeAssignment(
                    new Assignment(partitions(head[1]), bytes(head[2])), Short.parseShort(head[3])));
                case "user-data" -> userData(head);
                default -> throw new IllegalArgumentException(line);
            });
            System.out.flush();
        }
    }

    // assign ASSIGNOR topic:count,… topic:number:rack+rack,… | MEMBER INSTANCE <subscription> | …
    static String assign(String[] head, String[] rows) {
        Map<String, Node[]> replicas = new HashMap<>();
        for (String word : list(head[3])) {
            String[] parts = word.split(":");
            replicas.put(parts[0] + ":" + parts[1], Arrays.stream(parts[2].split("\\+"))
                .map(rack -> new Node(rack.hashCode(), "h", 1, rack)).toArray(Node[]::new));
        }
        Map<String, List<PartitionInfo>> topics = new HashMap<>();
        for (TopicPartition topic : partitions(head[2])) {
            List<PartitionInfo> infos = new ArrayList<>();
            for (int number = 0; number < topic.partition(); number++) {
                Node[] nodes = replicas.getOrDefault(topic.topic() + ":" + number, new Node[0]);
                infos.add(new PartitionInfo(topic.topic(), number, null, nodes, nodes));
            }
            topics.put(topic.topic(), infos);
        }
        Map<String, Subscription> members = new HashMap<>();
        for (int row = 1; row < rows.length; row++) {
            String[] words = rows[row].split(" ");
            Subscription subscription = subscription(words, 2);
            if (!words[1].equals("-"))
                subscription.setGroupInstanceId(Optional.of(words[1]));
            members.put(words[0], subscription);
        }
        List<String> out = new ArrayList<>();
        new TreeMap<>(assignor(head[1]).assignPartitions(topics, members)).forEach((member, partitions) -> {
            List<String> texts = new ArrayList<>();
            partitions.forEach(tp -> texts.add(tp.topic() + ":" + tp.partition()));
            out.add(member + " " + (texts.isEmpty() ? "-" : String.join(",", texts)));
        });
        return String.join("|", out);
    }

    // user-data ASSIGNOR partitions generation
    @SuppressWarnings("removal")
    static String userData(String[] words) {
        AbstractPartitionAssignor assignor = assignor(words[1]);
        ConsumerGroupMetadata group = new ConsumerGroupMetadata(
            "group", Integer.parseInt(words[3]), "member", Optional.empty());
        if (group.generationId() >= 0)
            assignor.onAssignment(new Assignment(partitions(words[2])), group);
        return hex(assignor.subscriptionUserData(Set.of("t")));
    }

    // topics user-data owned generation rack
    static Subscription subscription(String[] words, int at) {
        List<String> topics = new ArrayList<>(list(words[at]));
        Optional<String> rack = words[at + 4].equals("-") ? Optional.empty() : Optional.of(words[at + 4]);
        return new Subscription(topics, bytes(words[at + 1]), partitions(words[at + 2]),
            Integer.parseInt(words[at + 3]), rack);
    }

    static AbstractPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            case "cooperative-sticky" -> new CooperativeStickyAssignor();
            default -> throw new IllegalArgumentException(name);
        };
    }

    static List<TopicPartition> partitions(String text) {
        List<TopicPartition> partitions = new ArrayList<>();
        for (String word : list(text)) {
            String[] parts = word.split(":");
            partitions.add(new TopicPartition(parts[0], Integer.parseInt(parts[1])));
        }
        return partitions;
    }

    static List<String> list(String text) {
        return text.equals("-") ? List.of() : List.of(text.split(","));
    }

    static ByteBuffer bytes(String text) {
        return text.equals("-") ? null : ByteBuffer.wrap(HexFormat.of().parseHex(text));
    }

    static String hex(ByteBuffer buffer) {
        if (buffer == null)
            return "-";
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HexFormat.of().formatHex(bytes);
    }
}
