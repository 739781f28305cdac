// SipHash-2-4 gives the values that its authors published (vectors_sip64 in their reference implementation).
#include "base/siphash.h"
#include "unit.h"

#include <string.h>

// Key 00 01 .. 0f, message 00 01 .. (length - 1); 15 bytes is the example of the paper's appendix A.
TEST(the_published_values_come_out) {
    static const struct {
        size_t length;
        uint64_t value;
    } vectors[] = {{0, 0x726fdb47dd0e0e31u}, {1, 0x74f839c593dc67fdu},  {7, 0xab0200f58b01d137u},
                   {8, 0x93f5f5799a932462u}, {15, 0xa129ca6149be45e5u}, {63, 0x958a324ceb064572u}};
    unsigned char bytes[64];
    SipKey key;
    for (int i = 0; i < 64; i++) bytes[i] = (unsigned char)i;
    memcpy(&key, bytes, sizeof key);
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        assert_true(siphash(key, bytes, vectors[i].length) == vectors[i].value);
}

TEST(one_bit_of_key_or_message_changes_it) {
    const char *text = "rank 2 is at step 12 F3";
    SipKey key = {{1, 2}}, other = {{1, 3}};
    assert_true(siphash(key, text, 23) != siphash(other, text, 23));
    assert_true(siphash(key, text, 23) != siphash(key, text, 22));
}
