"""Schemas with fields of all kinds."""

from __future__ import annotations

from sparkkafka.config.kinds import PROTOBUF
from sparkkafka.schemas.values import Schema

COMMON = Schema(
    PROTOBUF,
    """
    syntax = "proto3";
    package common;
    message Place { double lat = 1; double lon = 2; }
    enum Level { LEVEL_NONE = 0; LEVEL_LOW = 1; LEVEL_HIGH = 2; }
    """,
)
MIDDLE = Schema(
    PROTOBUF,
    """
    syntax = "proto3";
    package middle;
    import public "lib/common.proto";
    message Stop { common.Place at = 1; string name = 2; }
    """,
    (("lib/common.proto", COMMON),),
)

ALL3 = Schema(
    PROTOBUF,
    """
    syntax = "proto3";
    package all3;
    import "google/protobuf/any.proto";
    import "google/protobuf/duration.proto";
    import "google/protobuf/struct.proto";
    import "google/protobuf/timestamp.proto";
    import "google/protobuf/wrappers.proto";
    import "google/type/date.proto";
    import "confluent/meta.proto";
    import "confluent/type/decimal.proto";
    import "middle.proto";

    message All {
      double f_double = 1;
      float f_float = 2;
      int32 f_int32 = 3;
      int64 f_int64 = 4;
      uint32 f_uint32 = 5;
      uint64 f_uint64 = 6;
      sint32 f_sint32 = 7;
      sint64 f_sint64 = 8;
      fixed32 f_fixed32 = 9;
      fixed64 f_fixed64 = 10;
      sfixed32 f_sfixed32 = 11;
      sfixed64 f_sfixed64 = 12;
      bool f_bool = 13;
      string f_string = 14;
      bytes f_bytes = 15;
      common.Level f_enum = 16;
      middle.Stop f_stop = 17;

      optional double o_double = 21;
      optional float o_float = 22;
      optional int32 o_int32 = 23;
      optional uint64 o_uint64 = 26;
      optional sint64 o_sint64 = 28;
      optional bool o_bool = 33;
      optional string o_string = 34;
      optional bytes o_bytes = 35;
      optional common.Level o_enum = 36;

      repeated double r_double = 41;
      repeated float r_float = 42;
      repeated int32 r_int32 = 43;
      repeated int64 r_int64 = 44 [packed = false];
      repeated uint32 r_uint32 = 45;
      repeated uint64 r_uint64 = 46;
      repeated sint32 r_sint32 = 47 [packed = false];
      repeated sint64 r_sint64 = 48;
      repeated fixed32 r_fixed32 = 49;
      repeated fixed64 r_fixed64 = 50 [packed = false];
      repeated sfixed32 r_sfixed32 = 51;
      repeated sfixed64 r_sfixed64 = 52;
      repeated bool r_bool = 53;
      repeated string r_string = 54;
      repeated bytes r_bytes = 55;
      repeated common.Level r_enum = 56;
      repeated middle.Stop r_stop = 57;

      map<string, int32> m_string_int = 61;
      map<int32, string> m_int_string = 62;
      map<bool, double> m_bool_double = 63;
      map<uint64, bytes> m_uint_bytes = 64;
      map<sfixed64, middle.Stop> m_fixed_stop = 65;
      map<string, common.Level> m_enum = 66;
      map<string, google.protobuf.Timestamp> m_time = 67;

      google.protobuf.Timestamp w_time = 2001;
      google.protobuf.Duration w_duration = 2002;
      google.protobuf.Int32Value w_int32 = 2003;
      google.protobuf.UInt64Value w_uint64 = 2004;
      google.protobuf.StringValue w_string = 2005;
      google.protobuf.BoolValue w_bool = 2006;
      google.protobuf.Struct w_struct = 2007;
      google.protobuf.Value w_value = 2008;
      google.protobuf.ListValue w_list = 2009;
      google.protobuf.Any w_any = 2010;
      google.type.Date w_date = 2011;
      confluent.type.Decimal w_decimal = 2012 [(confluent.field_meta) = {
        params: [{ key: "precision", value: "12" }, { key: "scale", value: "2" }]
      }];
      repeated google.protobuf.Timestamp rw_time = 2021;
      repeated google.protobuf.DoubleValue rw_double = 2022;
      repeated google.type.Date rw_date = 2023;

      oneof choice {
        string c_string = 3001;
        int64 c_int64 = 3002;
        middle.Stop c_stop = 3003;
        google.protobuf.Timestamp c_time = 3004;
      }
    }
    """,
    (("middle.proto", MIDDLE),),
)

ALL2 = Schema(
    PROTOBUF,
    """
    syntax = "proto2";
    package all2;
    import "middle.proto";
    enum Zero { NIL = 0; UNIT = 1; }
    enum Closed { ONE = 1; TWO = 2; MINUS = -3; }
    message Inner { required string name = 1; optional Closed kind = 2; }
    message All {
      required int32 must = 1;
      required string also = 2;
      optional int32 plain = 3;
      optional int32 given = 4 [default = -7];
      optional string text = 5 [default = "none"];
      optional bytes data = 6 [default = "\\001\\377"];
      optional double real = 7 [default = 2.5];
      optional float small = 8 [default = 0.5];
      optional bool flag = 9 [default = true];
      optional Closed kind = 10 [default = TWO];
      optional Closed other = 11;
      optional uint64 big = 12 [default = 18446744073709551615];
      repeated int32 unpacked = 13;
      repeated int32 packed = 14 [packed = true];
      repeated Closed kinds = 15;
      optional Inner inner = 16;
      repeated Inner inners = 17;
      optional group Grp = 18 {
        optional int32 a = 1;
        repeated string b = 2;
        optional Inner c = 3;
      }
      repeated group Grps = 19 {
        optional int64 x = 1;
        optional group Deep = 2 { optional bool y = 1; }
      }
      map<string, Zero> by_name = 20;
      map<int32, Inner> by_number = 21;
      optional common.Level open = 22;
      oneof pick { int32 p_int = 23; string p_text = 24; Inner p_inner = 25; }
      extensions 100 to 199;
    }
    extend All { optional string extra = 100; }
    """,
    (("middle.proto", MIDDLE),),
)

EDITION = Schema(
    PROTOBUF,
    """
    edition = "2023";
    package ed;
    message All {
      int32 explicit_ = 1;
      int32 implicit_ = 2 [features.field_presence = IMPLICIT];
      string required_ = 3 [features.field_presence = LEGACY_REQUIRED];
      Inner delimited = 4 [features.message_encoding = DELIMITED];
      repeated int32 expanded = 5 [features.repeated_field_encoding = EXPANDED];
      int32 with_default = 6 [default = 42];
      message Inner { string a = 1; Inner2 b = 2 [features.message_encoding = DELIMITED]; }
      message Inner2 { sint64 c = 1; }
    }
    """,
)
GROUPS2 = Schema(
    PROTOBUF,
    """
    syntax = "proto2";
    package groups2;
    import "google/protobuf/empty.proto";
    import "google/protobuf/struct.proto";
    import "google/protobuf/timestamp.proto";
    import "google/type/date.proto";
    enum Closed { NIL = 0; UNIT = 1; MINUS = -3; }
    message Inner {
      required int32 x = 1;
      optional Closed kind = 2;
      optional group In = 3 { required string s = 1; }
    }
    message All {
      optional group G = 1 { optional int32 x = 1; optional Inner inner = 2; }
      required int32 z = 2;
      repeated group Gs = 3 {
        required int64 a = 1;
        optional group Deep = 2 { optional bool y = 1; required Closed k = 2; }
      }
      map<int32, Closed> closed = 4;
      map<string, Inner> inners = 5;
      map<sint32, string> texts = 6;
      optional Inner inner = 7;
      repeated Inner many = 8;
      oneof pick {
        Inner p_inner = 9;
        Closed p_closed = 10 [default = MINUS];
        group P = 11 { optional uint32 u = 1; }
        string p_text = 12 [default = "none"];
        int32 p_int = 13 [default = 5];
        google.protobuf.Empty p_empty = 25;
        group PNothing = 26 {}
      }
      map<bool, google.protobuf.Empty> empties = 27;
      optional uint32 u = 14;
      optional sint32 s = 15;
      optional Closed e = 16 [default = UNIT];
      repeated int32 packed = 17 [packed = true];
      repeated Closed closed_packed = 18 [packed = true];
      repeated uint32 plain = 19;
      optional bool b = 20;
      optional fixed32 f = 21;
      optional google.protobuf.Timestamp at = 22;
      optional google.type.Date day = 23;
      optional google.protobuf.Value value = 24;
      extensions 100 to 199;
    }
    extend All { optional group Ext = 100 { optional int32 a = 1; } }
    """,
)
DELIMITED = Schema(
    PROTOBUF,
    """
    edition = "2023";
    package delimited;
    option features.message_encoding = DELIMITED;
    import "google/protobuf/duration.proto";
    import "google/protobuf/empty.proto";
    import "google/protobuf/struct.proto";
    import "google/protobuf/wrappers.proto";
    enum Closed { option features.enum_type = CLOSED; NIL = 0; UNIT = 1; }
    enum Open { ZERO = 0; ONE = 1; }
    message Inner {
      string name = 1 [features.field_presence = LEGACY_REQUIRED];
      Plain plain = 2 [features.message_encoding = LENGTH_PREFIXED];
    }
    message Plain { sint32 a = 1 [features.field_presence = IMPLICIT]; }
    message All {
      int32 id = 1 [features.field_presence = LEGACY_REQUIRED];
      Inner inner = 2;
      repeated Inner many = 3;
      map<string, Inner> inners = 4;
      map<int32, Closed> closed = 5;
      google.protobuf.Duration time = 6;
      google.protobuf.UInt32Value number = 7;
      google.protobuf.Struct json = 8;
      repeated google.protobuf.Duration times = 9;
      oneof pick { Inner p_inner = 10; Closed p_closed = 11; Plain p_plain = 12; }
      Open open = 13;
      repeated uint32 expanded = 14 [features.repeated_field_encoding = EXPANDED];
      repeated Open packed = 15;
      Inner required_ = 16 [features.field_presence = LEGACY_REQUIRED];
      google.protobuf.Empty empty = 17;
      repeated google.protobuf.Empty empties = 18;
    }
    """,
)
CASES = {
    "proto3": (ALL3, "all3.All"),
    "proto2": (ALL2, "all2.All"),
    "edition": (EDITION, "ed.All"),
    "groups": (GROUPS2, "groups2.All"),
    "delimited": (DELIMITED, "delimited.All"),
}
