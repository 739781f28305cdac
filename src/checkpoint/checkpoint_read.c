// Lane l reads the pieces l, l + READER_LANES, ... one after the other into memory of its own, and waits there until
// the caller has taken each. The caller takes pieces in their order, so its results, and the first error, do not depend
// on which thread was faster; the device sees one thread only.
#include "checkpoint_read.h"
#include "base/threads.h"

typedef struct Reading Reading;

typedef struct Lane {
    Reading *reading;
    SourceReader reader;
    int64_t first; // piece
    pthread_t thread;
    bool runs;   // false: no thread could be started, and the caller reads this lane's pieces
    bool full;   // a piece has come and was not taken yet
    bool failed; // err has the reason
    Error err;
} Lane;

struct Reading {
    const Split *split;
    const ReadPiece *pieces;
    int64_t count;
    pthread_mutex_t mutex; // protects `full` and `stop`
    pthread_cond_t changed;
    bool stop;
    Lane lane[READER_LANES];
};

static void read_piece_(Lane *lane, const ReadPiece *piece) {
    lane->failed = source_read(&lane->reader, piece->found, piece->tensor, lane->reading->split, piece->begin,
                               piece->end, &lane->err) != 0;
}

// Waits until lane->full == full. false: the reading stops.
static bool wait_(Lane *lane, bool full) {
    Reading *reading = lane->reading;
    pthread_mutex_lock(&reading->mutex);
    while (lane->full != full && !reading->stop) pthread_cond_wait(&reading->changed, &reading->mutex);
    bool goes_on = !reading->stop;
    pthread_mutex_unlock(&reading->mutex);
    return goes_on;
}

static void set_full_(Lane *lane, bool full) {
    Reading *reading = lane->reading;
    pthread_mutex_lock(&reading->mutex);
    lane->full = full;
    pthread_cond_broadcast(&reading->changed);
    pthread_mutex_unlock(&reading->mutex);
}

static void *read_lane_(void *argument) {
    Lane *lane = argument;
    const Reading *reading = lane->reading;
    for (int64_t i = lane->first; i < reading->count && !lane->failed; i += READER_LANES) {
        if (!wait_(lane, false)) return NULL;
        read_piece_(lane, &reading->pieces[i]);
        set_full_(lane, true);
    }
    return NULL;
}

static int take_pieces_(Reading *reading, PieceVisitor visit, void *context, Error *err) {
    for (int64_t i = 0; i < reading->count; i++) {
        Lane *lane = &reading->lane[i % READER_LANES];
        if (lane->runs) wait_(lane, true);
        else read_piece_(lane, &reading->pieces[i]);
        if (lane->failed) {
            *err = lane->err;
            return -1;
        }
        ReadValues values = {lane->reader.values, lane->reader.strange};
        if (visit(context, &reading->pieces[i], &values, err) != 0) return -1;
        set_full_(lane, false);
    }
    return 0;
}

static void end_lanes_(Reading *reading) {
    pthread_mutex_lock(&reading->mutex);
    reading->stop = true;
    pthread_cond_broadcast(&reading->changed);
    pthread_mutex_unlock(&reading->mutex);
    for (int l = 0; l < READER_LANES; l++) {
        if (reading->lane[l].runs) pthread_join(reading->lane[l].thread, NULL);
        source_reader_close(&reading->lane[l].reader);
    }
    pthread_cond_destroy(&reading->changed);
    pthread_mutex_destroy(&reading->mutex);
}

int pieces_read(const Source *source, const Split *split, const ReadPiece *pieces, int64_t count, PieceVisitor visit,
                void *context, Error *err) {
    Reading reading = {.split = split, .pieces = pieces, .count = count};
    pthread_mutex_init(&reading.mutex, NULL);
    pthread_cond_init(&reading.changed, NULL);
    for (int l = 0; l < READER_LANES; l++) {
        Lane *lane = &reading.lane[l];
        lane->reading = &reading, lane->first = l;
        source_reader_open(&lane->reader, source);
    }
    for (int l = 0; l < READER_LANES && l < count; l++)
        reading.lane[l].runs = thread_start(&reading.lane[l].thread, read_lane_, &reading.lane[l]);
    int status = take_pieces_(&reading, visit, context, err);
    end_lanes_(&reading);
    return status;
}
