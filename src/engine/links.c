// Which boundary of virtual stages each link of a stage crosses, and the order in which stages connect.
#include "links.h"

// Creates one end of one direction over the boundary between virtual stages g and g+1. If both are on this stage, both
// ends are created when the sending one is asked for.
static int links_create_one_(Links *links, const Schedule *schedule, int stage, int64_t bytes, Comm *const *lanes,
                             int chunk, int g, P2pWay way, Error *err) {
    int ends[2][2]; // of the boundary: stage and chunk of g and of g+1
    int depth = schedule->edge_buffers, mine = g == schedule_virtual(schedule, stage, chunk) ? 0 : 1;
    bool sends = mine == (way == P2P_FORWARD ? 0 : 1);
    P2pLink *link = sends ? &links->chunk[chunk].out[way] : &links->chunk[chunk].in[way];
    if (g < 0 || g + 1 == schedule->stages * schedule->chunks)
        return p2p_create(link, links->be, NULL, -1, sends, depth, bytes, err);
    for (int i = 0; i < 2; i++) schedule_home(schedule, g + i, &ends[i][0], &ends[i][1]);
    if (ends[0][0] != ends[1][0])
        return p2p_create(link, links->be, lanes[p2p_lane(schedule, g, way)], ends[1 - mine][0], sends, depth, bytes,
                          err);
    P2pLink *other = &links->chunk[ends[1 - mine][1]].in[way];
    return sends ? p2p_create_local(link, other, links->be, depth, bytes, err) : 0;
}

// Connects the boundaries to other stages: first the even ones, since no two of them share a stage if stages are in a
// row, then the odd ones. The order is the same on all stages, so that each finds its peer at the same boundary.
static int links_connect_(Links *links, const Schedule *schedule, int stage, Error *err) {
    for (int parity = 0; parity < 2; parity++)
        for (int end = 0; end < 2 * schedule->chunks; end++) {
            ChunkLinks *own = &links->chunk[end / 2];
            bool above = end % 2 == 1; // the boundary after the chunk's virtual stage
            int g = schedule_virtual(schedule, stage, end / 2) - !above;
            if (g % 2 != parity) continue; // also true of -1, which is no boundary
            P2pLink *forward = above ? &own->out[P2P_FORWARD] : &own->in[P2P_FORWARD];
            P2pLink *backward = above ? &own->in[P2P_BACKWARD] : &own->out[P2P_BACKWARD];
            if (p2p_connect(forward, err) != 0 || p2p_connect(backward, err) != 0) return -1;
        }
    return 0;
}

int links_create(Links *links, Backend *be, const Schedule *schedule, int stage, int64_t message_bytes,
                 Comm *const *lanes, Error *err) {
    *links = (Links){.be = be, .chunks = schedule->chunks, .edge_buffers = schedule->edge_buffers};
    for (int c = 0; c < schedule->chunks; c++)
        for (int way = 0; way < P2P_WAYS; way++)
            for (int above = 0; above < 2; above++) {
                int g = schedule_virtual(schedule, stage, c) - !above;
                if (links_create_one_(links, schedule, stage, message_bytes, lanes, c, g, (P2pWay)way, err) != 0)
                    return -1;
            }
    return links_connect_(links, schedule, stage, err);
}

P2pLink *links_at(Links *links, int i) {
    ChunkLinks *chunk = &links->chunk[i / (2 * P2P_WAYS)];
    if (i >= 2 * P2P_WAYS * links->chunks) return NULL;
    return i % 2 == 0 ? &chunk->in[i / 2 % P2P_WAYS] : &chunk->out[i / 2 % P2P_WAYS];
}

void links_destroy(Links *links) {
    P2pLink *link;
    for (int i = 0; (link = links_at(links, i)) != NULL; i++) p2p_destroy(link);
}
