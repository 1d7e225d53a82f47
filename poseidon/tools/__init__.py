"""What Caffe's users do around training, one tool per file; `poseidon/cli` declares their flags.

    convert_imageset   images into a database of Datums
    image_mean         the mean image of a database
    partition          a database dealt into several
    features           blobs of a net, for every record, into databases
    upgrade            nets and solvers of old formats into the current one
    picture, graphviz  a net as a graph, and as an image
    training_log       what Caffe's log says; log_tables and log_charts show it
    classify           images and what a net takes them for

A tool raises PoseidonError for what a user can mend, tells a Teller what it does, and leaves whole results or none.
"""
